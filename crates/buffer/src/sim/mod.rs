//! The simulation: the real buffer on a disk that lies, one seed a run, and a model that knows what must hold.
//!
//! | file | what |
//! |---|---|
//! | `cells` | faults, calls, kinds of files, and which of their combinations can occur |
//! | `disk` | what a crash keeps of bytes and names that were not flushed |
//! | `files` | the disk as a [`Filesystem`](crate::Filesystem), every call of which may fail |
//! | `swarm` | what one seed's run is about: sizes, weights of actions, odds of faults |
//! | `model` | which writes must be there, which must not, what each lane is charged |
//! | `world` | one run: its steps, crashes and recoveries |
//! | `work` | the actions: accept, fetch, settle, note, purge |
//! | `check` | reading everything and comparing it with the model; the drain at the end |

mod cells;
mod check;
mod disk;
mod files;
mod model;
mod rng;
mod swarm;
mod work;
mod world;

pub use cells::{Area, Call, Cell, Fault, possible};
pub use disk::SimFilesystem;
pub use model::id_of;
pub use rng::Rng;
pub use swarm::Odds;
pub use world::{Report, Scenario, run};
