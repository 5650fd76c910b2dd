//! The simulation: the real buffer on a disk that lies, one seed a run, and a model that knows what must hold.

mod disk;
mod driver;
mod model;

pub use disk::{Area, Call, Fault, Odds, Rng, SimFilesystem};
pub use driver::{Report, Scenario, run};
pub use model::id_of;
