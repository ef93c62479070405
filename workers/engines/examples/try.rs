//! Try the engines by hand.
//!
//! ```text
//! cargo run -p steadfast-engines --example try -- embed MODEL_DIR "a text" "another" …   cosine of the first with each other
//! cargo run -p steadfast-engines --example try -- rank MODEL_DIR "a question" FILE …     files by their best piece
//! cargo run -p steadfast-engines --example try -- pages FILE [MEDIA_TYPE]                what is on its pages, pictures read by tesseract
//! ```

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use steadfast_engines::EngineError;
use steadfast_engines::chunk::{Chunker, DEFAULT_MAX_CHARS, DEFAULT_OVERLAP};
use steadfast_engines::extract::{Limits, PageContent, extract};
use steadfast_engines::minilm::MiniLm;
use steadfast_engines::tesseract::Tesseract;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["embed", dir, texts @ ..] if texts.len() > 1 => embed(dir, texts)?,
        ["rank", dir, question, files @ ..] if !files.is_empty() => rank(dir, question, files)?,
        ["pages", file] => pages(file, None)?,
        ["pages", file, media_type] => pages(file, Some(media_type))?,
        _ => return Err("say: embed DIR TEXT TEXT …, rank DIR QUESTION FILE …, or pages FILE [MEDIA_TYPE]".into()),
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    for line in status.lines().filter(|line| line.starts_with("VmHWM") || line.starts_with("VmRSS")) {
        println!("{line}");
    }
    Ok(())
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn embed(dir: &str, texts: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    let started = Instant::now();
    let model = MiniLm::load(Path::new(dir))?;
    println!("loaded in {:?}", started.elapsed());
    let texts: Vec<String> = texts.iter().map(ToString::to_string).collect();
    let started = Instant::now();
    let vectors = model.embed(&texts)?;
    println!("{} texts in {:?}", texts.len(), started.elapsed());
    for (text, vector) in texts.iter().zip(&vectors) {
        let start: String = text.chars().take(60).collect();
        println!("{:.3}  {} tokens  {start}", cosine(&vectors[0], vector), model.count_tokens(text));
    }
    Ok(())
}

fn rank(dir: &str, question: &str, files: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    let model = std::sync::Arc::new(MiniLm::load(Path::new(dir))?);
    let counter = std::sync::Arc::clone(&model);
    let chunker = Chunker::new(DEFAULT_MAX_CHARS, DEFAULT_OVERLAP)?.with_token_limit(
        steadfast_engines::minilm::MAX_TOKENS,
        std::sync::Arc::new(move |text| counter.count_tokens(text)),
    );
    let question = &model.embed(&[question.to_owned()])?[0];
    let mut ranked = Vec::new();
    for file in files {
        let pieces: Vec<String> = read(file, None)?.iter().flat_map(|page| chunker.chunks(page)).collect();
        let best = model
            .embed(&pieces)?
            .iter()
            .map(|vector| cosine(question, vector))
            .fold(-1.0, f32::max);
        ranked.push((best, pieces.len(), *file));
    }
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (best, pieces, file) in ranked {
        println!("{best:.3}  {pieces} pieces  {file}");
    }
    Ok(())
}

/// The text of each page, for better or worse.
fn read(file: &str, media_type: Option<&str>) -> Result<Vec<String>, EngineError> {
    let bytes = std::fs::read(file).map_err(|error| EngineError::Failed(error.to_string()))?;
    let tesseract = Tesseract::find()?;
    let mut texts = Vec::new();
    let name = Path::new(file)
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let summary = extract(&bytes, &name, media_type, &Limits::default(), &mut |page| {
        let text = match page.content {
            PageContent::Text(text) => text,
            PageContent::Unreadable { note } => format!("[unreadable: {note}]"),
            PageContent::Image { png, width, height } => {
                let started = Instant::now();
                let read = tesseract.read(&png, Duration::from_secs(120), &AtomicBool::new(false))?;
                eprintln!(
                    "page {}: {width} × {height}, {} bytes of PNG, {} words, confidence {:?}, {:?}",
                    page.no,
                    png.len(),
                    read.words,
                    read.mean_confidence,
                    started.elapsed()
                );
                read.text
            }
        };
        texts.push(text);
        Ok(())
    })?;
    eprintln!("{summary:?}");
    Ok(texts)
}

fn pages(file: &str, media_type: Option<&str>) -> Result<(), Box<dyn std::error::Error>> {
    let started = Instant::now();
    for (index, text) in read(file, media_type)?.iter().enumerate() {
        println!("--- page {}\n{text}", index + 1);
    }
    println!("--- {:?}", started.elapsed());
    Ok(())
}
