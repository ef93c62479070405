//! Pieces of text to vectors with all-MiniLM-L6-v2: 384 numbers, mean-pooled, of length one, so that a dot product is the cosine.
//!
//! A BERT of six layers written out on candle's tensors. Why not the ready-made one: docs/decisions/0004-embedding-engine.md.
//!
//! **Cores.** All tensor work runs inside a thread pool of this model's own, so [`MiniLm::load_with_threads`] bounds what *all* callers
//! together use, however many there are. Left alone, candle would use a process-wide pool of every core (bounded only by the environment
//! variable RAYON_NUM_THREADS, which has to be set before the process starts).
//!
//! **Memory.** The weights are read one tensor at a time into place: 90 MB, plus about 50 MB of scratch space per concurrent call at worst (157 MB peak measured).
//! A memory map would need no copy in theory, but the tensor library copies out of the map, so both would stay resident.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use candle_core::{D, Device, Tensor};
use candle_nn::{LayerNorm, Linear, Module};
use serde::Deserialize;
use tokenizers::{Encoding, Tokenizer};

use crate::EngineError;

/// The longest text accepted, in tokens and with the two frame tokens: what the model has positions for, less a margin of two.
///
/// The model was trained on windows of 256 tokens; up to here the position table still has rows and the meaning holds, beyond it there is
/// nothing. Longer texts are refused, never cut.
pub const MAX_TOKENS: usize = 510;
/// Numbers in a vector.
pub const DIMENSIONS: usize = 384;
/// The name stored beside vectors: vectors of different models must not be compared.
pub const MODEL: &str = "all-MiniLM-L6-v2";

/// Padded tokens computed at once. Bounds the scratch space, above all the attention scores: 12 heads × rows × length² × 4 bytes.
const TOKENS_AT_ONCE: usize = 512;

/// A loaded model. `Send + Sync`: share one per process.
pub struct MiniLm {
    tokenizer: Tokenizer,
    bert: Bert,
    pool: rayon::ThreadPool,
}

impl std::fmt::Debug for MiniLm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MiniLm")
            .field("model", &MODEL)
            .field("threads", &self.pool.current_num_threads())
            .finish_non_exhaustive()
    }
}

impl MiniLm {
    /// Load the model from a directory that holds `model.safetensors`, `tokenizer.json` and `config.json`, using up to two cores.
    ///
    /// # Errors
    /// `Unavailable` when a file is missing, unreadable or describes another kind of model.
    pub fn load(dir: &Path) -> Result<MiniLm, EngineError> {
        // Two: the second core nearly halves a batch's time, more give little for matrices this small.
        let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(2));
        Self::load_with_threads(dir, threads)
    }

    /// As [`MiniLm::load`], with the number of cores that all calls together may use (at least one).
    ///
    /// # Errors
    /// `Unavailable`, as for [`MiniLm::load`].
    pub fn load_with_threads(dir: &Path, threads: usize) -> Result<MiniLm, EngineError> {
        let config = std::fs::read(dir.join("config.json")).map_err(|error| missing("config.json", &error))?;
        let config: Config = serde_json::from_slice(&config).map_err(|error| broken("config.json", &error))?;
        if config.hidden_size != DIMENSIONS
            || config.hidden_act != "gelu"
            || config.max_position_embeddings < MAX_TOKENS
            || config.num_attention_heads == 0
            || !config.hidden_size.is_multiple_of(config.num_attention_heads)
        {
            return Err(broken("config.json", &format!("not a {MODEL} model")));
        }
        let tokenizer = std::fs::read(dir.join("tokenizer.json")).map_err(|error| missing("tokenizer.json", &error))?;
        let mut tokenizer = Tokenizer::from_bytes(tokenizer).map_err(|error| broken("tokenizer.json", &error))?;
        // The file asks to cut at 128 tokens and to pad to 128. Both are decided here: a cut text would look like a whole one.
        tokenizer.with_truncation(None).map_err(|error| broken("tokenizer.json", &error))?;
        tokenizer.with_padding(None);

        let mut weights = Weights::open(&dir.join("model.safetensors"))?;
        let bert = Bert::load(&config, &mut weights)?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads.max(1))
            .thread_name(|n| format!("minilm-{n}"))
            .build()
            .map_err(|error| EngineError::Unavailable(format!("the embedding engine could not start its threads: {error}")))?;
        Ok(MiniLm { tokenizer, bert, pool })
    }

    /// The length of `text` in tokens, the two frame tokens included: the number to compare with [`MAX_TOKENS`].
    ///
    /// A text that the tokenizer cannot take counts as too long, so that nobody sends it.
    #[must_use]
    pub fn count_tokens(&self, text: &str) -> usize {
        self.tokenizer.encode_fast(text, true).map_or(usize::MAX, |encoding| encoding.len())
    }

    /// One vector of [`DIMENSIONS`] numbers and length one per text, in order. No texts give no vectors; a blank text gets the vector of
    /// an empty sentence.
    ///
    /// # Errors
    /// `Oversize` for the first text above [`MAX_TOKENS`], before anything is computed; `Failed` when the tensor library refuses.
    pub fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, EngineError> {
        let encodings = texts
            .iter()
            .enumerate()
            .map(|(index, text)| {
                let encoding = self
                    .tokenizer
                    .encode_fast(text.as_str(), true)
                    .map_err(|error| EngineError::Failed(format!("text {index} could not be split into tokens: {error}")))?;
                match encoding.len() {
                    tokens if tokens > MAX_TOKENS => Err(EngineError::Oversize {
                        index,
                        tokens,
                        max: MAX_TOKENS,
                    }),
                    _ => Ok(encoding),
                }
            })
            .collect::<Result<Vec<_>, _>>()?;

        // Neighbours in length share a batch, so that little of it is padding.
        let mut order: Vec<usize> = (0..encodings.len()).collect();
        order.sort_by_key(|index| encodings[*index].len());
        let mut vectors = vec![Vec::new(); encodings.len()];
        let mut rest = order.as_slice();
        while !rest.is_empty() {
            // The lengths rise, so the last of a batch is its width.
            let rows = (1..=rest.len())
                .take_while(|rows| rows * encodings[rest[rows - 1]].len() <= TOKENS_AT_ONCE)
                .last()
                .unwrap_or(1);
            let (batch, tail) = rest.split_at(rows);
            rest = tail;
            let inputs: Vec<&Encoding> = batch.iter().map(|index| &encodings[*index]).collect();
            let found = self
                .pool
                .install(|| self.bert.embed(&inputs))
                .map_err(|error| EngineError::Failed(format!("the embedding engine failed on a batch of {rows} texts: {error}")))?;
            for (index, vector) in batch.iter().zip(found) {
                vectors[*index] = vector;
            }
        }
        Ok(vectors)
    }
}

fn missing(file: &str, error: &std::io::Error) -> EngineError {
    EngineError::Unavailable(format!(
        "the embedding model's {file} cannot be read ({}): install the model files",
        error.kind()
    ))
}

fn broken(file: &str, error: &dyn std::fmt::Display) -> EngineError {
    EngineError::Unavailable(format!("the embedding model's {file} cannot be used: {error}"))
}

#[derive(Deserialize)]
struct Config {
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    type_vocab_size: usize,
    layer_norm_eps: f64,
    hidden_act: String,
}

/// A safetensors file: a length, a JSON table of contents, then the numbers.
struct Weights {
    file: BufReader<File>,
    data_start: u64,
    entries: HashMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

impl Weights {
    fn open(path: &Path) -> Result<Weights, EngineError> {
        let name = "model.safetensors";
        let mut file = BufReader::with_capacity(1 << 16, File::open(path).map_err(|error| missing(name, &error))?);
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(|error| missing(name, &error))?;
        let length = u64::from_le_bytes(length);
        if length > 1 << 20 {
            return Err(broken(name, &"its table of contents is too long"));
        }
        let mut head = String::new();
        file.by_ref()
            .take(length)
            .read_to_string(&mut head)
            .map_err(|error| missing(name, &error))?;
        let mut table: HashMap<String, serde_json::Value> = serde_json::from_str(&head).map_err(|error| broken(name, &error))?;
        table.remove("__metadata__");
        let entries = table
            .into_iter()
            .map(|(name, entry)| serde_json::from_value(entry).map(|entry| (name, entry)))
            .collect::<Result<_, _>>()
            .map_err(|error| broken(name, &error))?;
        Ok(Weights {
            file,
            data_start: 8 + length,
            entries,
        })
    }

    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, EngineError> {
        let file = "model.safetensors";
        let entry = self.entries.get(name).ok_or_else(|| broken(file, &format!("{name} is missing")))?;
        let count: usize = shape.iter().product();
        let bytes = entry.data_offsets.1.checked_sub(entry.data_offsets.0);
        if entry.dtype != "F32" || entry.shape != shape || bytes != Some(count as u64 * 4) {
            return Err(broken(
                file,
                &format!("{name} is {} {:?} and not F32 {shape:?}", entry.dtype, entry.shape),
            ));
        }
        self.file
            .seek(SeekFrom::Start(self.data_start + entry.data_offsets.0))
            .map_err(|error| missing(file, &error))?;
        let mut numbers = Vec::with_capacity(count);
        let mut buffer = [0; 1 << 14];
        while numbers.len() < count {
            let want = buffer.len().min((count - numbers.len()) * 4);
            let part = &mut buffer[..want];
            self.file.read_exact(part).map_err(|error| missing(file, &error))?;
            numbers.extend(part.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        }
        Tensor::from_vec(numbers, shape, &Device::Cpu).map_err(|error| broken(file, &error))
    }

    fn linear(&mut self, name: &str, from: usize, to: usize) -> Result<Linear, EngineError> {
        let weight = self.tensor(&format!("{name}.weight"), &[to, from])?;
        let bias = self.tensor(&format!("{name}.bias"), &[to])?;
        Ok(Linear::new(weight, Some(bias)))
    }

    fn norm(&mut self, name: &str, size: usize, epsilon: f64) -> Result<LayerNorm, EngineError> {
        let weight = self.tensor(&format!("{name}.weight"), &[size])?;
        let bias = self.tensor(&format!("{name}.bias"), &[size])?;
        Ok(LayerNorm::new(weight, bias, epsilon))
    }
}

struct Bert {
    words: Tensor,
    positions: Tensor,
    /// Row 0 of the segment table: a single text is all segment 0.
    segment: Tensor,
    norm: LayerNorm,
    layers: Vec<Layer>,
}

struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    attended: Linear,
    attended_norm: LayerNorm,
    widen: Linear,
    narrow: Linear,
    narrow_norm: LayerNorm,
    heads: usize,
}

impl Bert {
    fn load(config: &Config, weights: &mut Weights) -> Result<Bert, EngineError> {
        let size = config.hidden_size;
        let words = weights.tensor("embeddings.word_embeddings.weight", &[config.vocab_size, size])?;
        let positions = weights.tensor("embeddings.position_embeddings.weight", &[config.max_position_embeddings, size])?;
        let segments = weights.tensor("embeddings.token_type_embeddings.weight", &[config.type_vocab_size, size])?;
        let segment = segments.get(0).map_err(|error| broken("model.safetensors", &error))?;
        let norm = weights.norm("embeddings.LayerNorm", size, config.layer_norm_eps)?;
        let layers = (0..config.num_hidden_layers)
            .map(|n| Layer::load(n, config, weights))
            .collect::<Result<_, _>>()?;
        Ok(Bert {
            words,
            positions,
            segment,
            norm,
            layers,
        })
    }

    fn embed(&self, inputs: &[&Encoding]) -> candle_core::Result<Vec<Vec<f32>>> {
        let rows = inputs.len();
        let width = inputs.iter().map(|input| input.len()).max().unwrap_or(0);
        let mut ids = vec![0_u32; rows * width];
        let mut mask = vec![0_f32; rows * width];
        for (row, input) in inputs.iter().enumerate() {
            let at = row * width;
            ids[at..at + input.len()].copy_from_slice(input.get_ids());
            mask[at..at + input.len()].fill(1.0);
        }
        let ids = Tensor::from_vec(ids, rows * width, &Device::Cpu)?;
        let mask = Tensor::from_vec(mask, (rows, width), &Device::Cpu)?;
        // Added to the attention scores: nothing for a token, minus a lot for padding. Infinity would make NaN of an all-padding row.
        let shade = mask.affine(1e9, -1e9)?.reshape((rows, 1, 1, width))?;

        let words = self.words.index_select(&ids, 0)?.reshape((rows, width, ()))?;
        let places = self.positions.narrow(0, 0, width)?.broadcast_add(&self.segment)?;
        let mut hidden = self.norm.forward(&words.broadcast_add(&places)?)?;
        for layer in &self.layers {
            hidden = layer.forward(&hidden, &shade)?;
        }

        let mask = mask.reshape((rows, width, 1))?;
        let sum = hidden.broadcast_mul(&mask)?.sum(1)?;
        let mean = sum.broadcast_div(&mask.sum(1)?)?;
        let length = mean.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?.clamp(1e-12_f32, f32::MAX)?;
        mean.broadcast_div(&length)?.to_vec2()
    }
}

impl Layer {
    fn load(n: usize, config: &Config, weights: &mut Weights) -> Result<Layer, EngineError> {
        let (size, wide, epsilon) = (config.hidden_size, config.intermediate_size, config.layer_norm_eps);
        let at = |name: &str| format!("encoder.layer.{n}.{name}");
        Ok(Layer {
            query: weights.linear(&at("attention.self.query"), size, size)?,
            key: weights.linear(&at("attention.self.key"), size, size)?,
            value: weights.linear(&at("attention.self.value"), size, size)?,
            attended: weights.linear(&at("attention.output.dense"), size, size)?,
            attended_norm: weights.norm(&at("attention.output.LayerNorm"), size, epsilon)?,
            widen: weights.linear(&at("intermediate.dense"), size, wide)?,
            narrow: weights.linear(&at("output.dense"), wide, size)?,
            narrow_norm: weights.norm(&at("output.LayerNorm"), size, epsilon)?,
            heads: config.num_attention_heads,
        })
    }

    fn forward(&self, hidden: &Tensor, shade: &Tensor) -> candle_core::Result<Tensor> {
        let (rows, width, size) = hidden.dims3()?;
        let per_head = size / self.heads;
        let split = |projected: Tensor| {
            projected
                .reshape((rows, width, self.heads, per_head))?
                .transpose(1, 2)?
                .contiguous()
        };
        let query = split(self.query.forward(hidden)?)?;
        let key = split(self.key.forward(hidden)?)?;
        let value = split(self.value.forward(hidden)?)?;
        let scores = (query.matmul(&key.t()?)? * (1.0 / (per_head as f64).sqrt()))?;
        let weights = candle_nn::ops::softmax_last_dim(&scores.broadcast_add(shade)?)?;
        let mixed = weights.matmul(&value)?.transpose(1, 2)?.reshape((rows, width, size))?;
        let hidden = self.attended_norm.forward(&(self.attended.forward(&mixed)? + hidden)?)?;
        let widened = self.widen.forward(&hidden)?.gelu_erf()?;
        self.narrow_norm.forward(&(self.narrow.forward(&widened)? + hidden)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_model_is_unavailable_and_says_which_file() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let error = MiniLm::load(dir.path()).expect_err("there is no model");
        assert!(
            matches!(&error, EngineError::Unavailable(text) if text.contains("config.json")),
            "{error}"
        );
        assert!(!error.to_string().contains(&*dir.path().to_string_lossy()), "no paths in sentences");
    }

    #[test]
    fn another_model_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let config = r#"{"hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"intermediate_size":3072,"vocab_size":30522,
            "max_position_embeddings":512,"type_vocab_size":2,"layer_norm_eps":1e-12,"hidden_act":"gelu"}"#;
        std::fs::write(dir.path().join("config.json"), config).expect("written");
        let error = MiniLm::load(dir.path()).expect_err("a larger model");
        assert!(matches!(&error, EngineError::Unavailable(text) if text.contains(MODEL)), "{error}");
    }

    #[test]
    fn a_model_is_shareable() {
        fn shareable<T: Send + Sync>() {}
        shareable::<MiniLm>();
    }

    /// One layer with known weights: whatever the padding, a text's vector is the same, and it has length one.
    #[test]
    fn padding_changes_nothing() {
        let config = Config {
            hidden_size: 4,
            num_hidden_layers: 1,
            num_attention_heads: 2,
            intermediate_size: 8,
            vocab_size: 16,
            max_position_embeddings: 8,
            type_vocab_size: 2,
            layer_norm_eps: 1e-12,
            hidden_act: "gelu".into(),
        };
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("model.safetensors");
        write_weights(&path, &config);
        let bert = Bert::load(&config, &mut Weights::open(&path).expect("opened")).expect("loaded");
        let encode =
            |ids: &[u32]| Encoding::from_tokens(ids.iter().map(|id| tokenizers::Token::new(*id, String::new(), (0, 0))).collect(), 0);
        let (short, long) = (encode(&[1, 5, 2]), encode(&[1, 3, 9, 11, 4, 2]));
        let alone = bert.embed(&[&short]).expect("computed");
        let together = bert.embed(&[&short, &long]).expect("computed");
        for (a, b) in alone[0].iter().zip(&together[0]) {
            assert!((a - b).abs() < 1e-5, "{alone:?} {together:?}");
        }
        assert!(
            together
                .iter()
                .all(|vector| (vector.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5)
        );
        assert!(
            together[0].iter().zip(&together[1]).any(|(a, b)| (a - b).abs() > 1e-3),
            "two texts, two vectors"
        );
    }

    fn write_weights(path: &Path, config: &Config) {
        let (size, wide) = (config.hidden_size, config.intermediate_size);
        let mut shapes = vec![
            ("embeddings.word_embeddings.weight".to_owned(), vec![config.vocab_size, size]),
            (
                "embeddings.position_embeddings.weight".to_owned(),
                vec![config.max_position_embeddings, size],
            ),
            (
                "embeddings.token_type_embeddings.weight".to_owned(),
                vec![config.type_vocab_size, size],
            ),
        ];
        let mut pair = |name: &str, shape: Vec<usize>| {
            shapes.push((format!("{name}.bias"), vec![shape[0]]));
            shapes.push((format!("{name}.weight"), shape));
        };
        pair("embeddings.LayerNorm", vec![size]);
        for name in [
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
        ] {
            pair(&format!("encoder.layer.0.{name}"), vec![size, size]);
        }
        pair("encoder.layer.0.attention.output.LayerNorm", vec![size]);
        pair("encoder.layer.0.intermediate.dense", vec![wide, size]);
        pair("encoder.layer.0.output.dense", vec![size, wide]);
        pair("encoder.layer.0.output.LayerNorm", vec![size]);

        let mut table = serde_json::Map::new();
        let mut data: Vec<u8> = Vec::new();
        for (name, shape) in shapes {
            let count: usize = shape.iter().product();
            let start = data.len();
            for n in 0..count {
                let value = (((start / 4 + n) as u32).wrapping_mul(2_654_435_761) >> 16) as f32 / 65_536.0 - 0.5;
                data.extend(value.to_le_bytes());
            }
            table.insert(
                name,
                serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]}),
            );
        }
        let head = serde_json::to_string(&table).expect("serialisable");
        let mut file = (head.len() as u64).to_le_bytes().to_vec();
        file.extend(head.bytes());
        file.extend(data);
        std::fs::write(path, file).expect("written");
    }
}
