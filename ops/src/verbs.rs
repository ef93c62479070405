//! One module per verb. Each has an `Args` for the command line and `async fn run(Args, &Ctx) -> anyhow::Result<ExitCode>`; a new one is
//! a line here, a variant of `Verb` and its arm in `main`.

pub(crate) mod add;
pub(crate) mod breaker;
pub(crate) mod ctx;
pub(crate) mod doctor;
pub(crate) mod endpoint;
pub(crate) mod house;
pub(crate) mod incident;
pub(crate) mod jobs;
pub(crate) mod search;
pub(crate) mod token;
