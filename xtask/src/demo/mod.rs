//! `demo`.
mod generator;
mod random;
use crate::error::Result;
use crate::workspace::Workspace;
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}
pub fn demo(_: &Workspace, options: &Options) -> Result<()> {
    let w = generator::webhook(options.seed, 0);
    println!("{}", String::from_utf8_lossy(&w.body));
    Ok(())
}
