//! Error handlers, on the public SDK only.
//!
//! * [`dead_letter`]: hands a full record of what failed to a send that `divert:` lists.
//! * [`isolate_poison`]: sets a message aside that fails again and again, so that the rest flows on.
//! * [`record`]: the dead-letter record and its published schema.

pub mod dead_letter;
pub mod isolate_poison;
pub mod record;
#[cfg(test)]
mod tests;

use consign_plugin::prelude::*;

/// The plugin and all it contains.
#[must_use]
pub fn plugin() -> Plugin {
    Plugin::new("handlers", env!("CARGO_PKG_VERSION"))
        .error_handler::<dead_letter::DeadLetter>()
        .error_handler::<isolate_poison::IsolatePoison>()
}

consign_plugin::export_plugin!(plugin, provides = "dead_letter isolate_poison");
