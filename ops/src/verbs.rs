//! One module per verb. Each has an `Args` for the command line and `async fn run(Args) -> anyhow::Result<ExitCode>`; a new one is
//! a line here, a variant of `Verb` and its arm in `main`.
