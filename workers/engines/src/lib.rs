//! The heavy, in-process engines: bytes in, text and vectors out.
//!
//! Everything here is a plain blocking function: no database, no network, no async runtime. The worker decides on which thread it runs,
//! for how long, and what a failure costs the job. The rooms:
//!
//! - [`sniff`]: what a file is, by its first bytes
//! - [`extract`]: a file to pages, each page text or a picture that needs reading
//! - [`tesseract`]: a picture to text, in a child process that can be killed
//! - [`chunk`]: text to overlapping pieces that fit an embedding model
//! - [`minilm`]: pieces to vectors
//!
//! They are a crate of their own because they bring nearly all of the compile time: a change in the worker rebuilds none of it.

pub mod chunk;
pub mod extract;
pub mod minilm;
pub mod sniff;
pub mod tesseract;

/// Why an engine gave no result, told so that the caller knows whose fault it is.
///
/// The sentences are for a person and never hold a document's content, a path on this machine, or a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The input can never be read, however often it is tried. The sentence names what is wrong and what to do about it.
    #[error("{0}")]
    BadInput(String),
    /// A text is longer than the model can see. It is refused rather than cut, because half an embedding looks like a whole one.
    #[error("text {index} is {tokens} tokens long and the model reads at most {max}: split it first")]
    Oversize {
        /// Position in the batch that was handed in.
        index: usize,
        /// Length counted by the model's own tokenizer, the two frame tokens included.
        tokens: usize,
        /// The longest text accepted, in the same count.
        max: usize,
    },
    /// The engine is not installed or its files are missing or wrong: an operator's matter, the input is innocent.
    #[error("{0}")]
    Unavailable(String),
    /// The deadline passed first.
    #[error("the engine did not finish before its deadline")]
    Timeout,
    /// The caller asked to stop.
    #[error("the work was cancelled")]
    Cancelled,
    /// The engine broke. Neither the input nor the installation is known to be at fault.
    #[error("{0}")]
    Failed(String),
}

/// Run third-party decoding code and turn a panic into a sentence.
///
/// The decoders are memory-safe but they index and unwrap; a hostile file must cost its own job and not the worker's process. The panic's own
/// message is dropped: it talks about the decoder's line numbers and helps nobody who uploads a file.
pub(crate) fn guard<T>(what: &str, work: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(EngineError::BadInput(format!(
            "{what} is damaged: its decoder gave up in the middle"
        )))
    })
}
