//! What a schema cannot express: names that must exist, sends that depend on each other, values
//! that must agree.

use crate::check::{self, Findings};
use crate::node::Node;
use crate::{Catalog, Config, Problem};

/// Checks everything that a schema cannot, and fills in what the plugins' schemas tell.
pub(crate) fn check(config: &mut Config, catalog: &Catalog, problems: &mut Vec<Problem>) {
    let _ = (config, catalog, problems);
}

pub(crate) fn loose_settings(root: &Node, catalog: &Catalog, problems: &mut Vec<Problem>) {
    let _ = (
        root,
        catalog,
        problems,
        check::settings as fn(&Node, &serde_json::Value, &str, &mut Vec<Problem>) -> Findings,
    );
}
