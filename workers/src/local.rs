//! The engines inside this process: an embedding model that is loaded when first needed, and Tesseract as a child. They are
//! endpoints like any other to the queue (decision D16); a worker that lacks one does not claim for it.

use std::path::PathBuf;
use std::sync::Arc;

use queue_schema::JobKind;
use steadfast_engines::EngineError;
use steadfast_engines::chunk::{Chunker, estimate_tokens};
use steadfast_engines::minilm::{MAX_TOKENS, MiniLm};
use steadfast_engines::tesseract::Tesseract;
use tokio::sync::OnceCell;

use crate::config::Config;

/// What is at hand here.
pub struct Local {
    model_dir: Option<PathBuf>,
    model: OnceCell<Arc<MiniLm>>,
    tesseract: Option<Tesseract>,
    /// In a child for one job, Tesseract is looked for when it is asked for.
    looks_late: bool,
    pub chunker: Chunker,
}

impl Local {
    /// Looks what is installed; loads nothing yet.
    ///
    /// # Errors
    /// When the chunk settings do not go together.
    pub fn find(config: &Config) -> Result<Self, EngineError> {
        let chunker = chunker(config)?;
        sweep_leftovers();
        let model_dir = config.model_dir.clone().filter(|dir| {
            let there = dir.join("model.safetensors").is_file();
            if !there {
                tracing::warn!(folder = %dir.display(), "no model.safetensors there: this worker embeds over HTTP only");
            }
            there
        });
        let tesseract = match config.kinds().contains(&JobKind::Ocr).then(Tesseract::find) {
            // Who does no OCR need not look: it costs a child process at each start.
            None => None,
            Some(Ok(t)) => Some(t),
            Some(Err(error)) => {
                tracing::warn!(%error, "this worker reads scans over HTTP only");
                None
            }
        };
        Ok(Self {
            model_dir,
            model: OnceCell::new(),
            tesseract,
            looks_late: false,
            chunker,
        })
    }

    /// For one job in a child: looks for nothing before it is asked for.
    ///
    /// # Errors
    /// When the chunk settings do not go together.
    pub fn for_one(config: &Config) -> Result<Self, EngineError> {
        Ok(Self {
            model_dir: config.model_dir.clone(),
            model: OnceCell::new(),
            tesseract: None,
            looks_late: true,
            chunker: chunker(config)?,
        })
    }

    /// The endpoint protocols this worker can serve.
    #[must_use]
    pub fn protocols(&self) -> Vec<String> {
        let mut all = vec!["openai".to_owned(), "ocr_http".to_owned()];
        if self.model_dir.is_some() {
            all.push("minilm".to_owned());
        }
        if self.tesseract.is_some() {
            all.push("tesseract".to_owned());
        }
        all
    }

    /// The embedding model, loaded once, beside the runtime.
    ///
    /// # Errors
    /// When its files are missing or broken.
    pub async fn model(&self) -> Result<Arc<MiniLm>, EngineError> {
        self.model
            .get_or_try_init(|| async {
                let Some(dir) = self.model_dir.clone() else {
                    return Err(EngineError::Unavailable(
                        "no model folder is set: --model-dir or STEADFAST_MODEL_DIR".to_owned(),
                    ));
                };
                let loaded = tokio::task::spawn_blocking(move || MiniLm::load(&dir)).await;
                loaded
                    .map_err(|_| EngineError::Failed("loading the model panicked".to_owned()))?
                    .map(Arc::new)
            })
            .await
            .cloned()
    }

    /// # Errors
    /// When it is not installed.
    pub fn tesseract(&self) -> Result<Tesseract, EngineError> {
        if self.looks_late {
            return Tesseract::find();
        }
        self.tesseract
            .clone()
            .ok_or_else(|| EngineError::Unavailable("tesseract is not installed here".to_owned()))
    }
}

fn chunker(config: &Config) -> Result<Chunker, EngineError> {
    let chars = config.chunk_chars as usize;
    Ok(Chunker::new(chars, chars / 7)?.with_token_limit(MAX_TOKENS, Arc::new(estimate_tokens)))
}

/// A worker that was killed in mid-OCR left one page in a temporary folder. Older than a day, nobody reads it any more.
fn sweep_leftovers() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with("steadfast-ocr-"))
    {
        let age = entry.metadata().and_then(|m| m.modified()).ok().and_then(|at| at.elapsed().ok());
        if age.is_some_and(|a| a > std::time::Duration::from_secs(86_400))
            && let Err(error) = std::fs::remove_dir_all(entry.path())
        {
            tracing::debug!(%error, "a page left by a killed worker could not be removed");
        }
    }
}
