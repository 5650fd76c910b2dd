//! Plugins built with another SDK: an older one and a newer one load, one whose data types differ
//! is refused.
//!
//! How they are built: `common/variant.rs`. The reverse, this SDK's plugin in a later host: `later_host.rs`;
//! a plugin of another compiler: `toolchain.rs`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "test code"
)]

mod common;

use common::variant::{Change, build, change};
use common::variant::{open_same, write_one};
use consign_loader::{Advice, Applied, Plugins, Scope, verify_file};
use std::path::Path;

/// Loads a variant and carries a batch through it.
async fn works(file: &Path, variant: &str) -> Plugins {
    let (plugins, outcome) = write_one(file, variant).await;
    assert_eq!(outcome.applied, Applied::Yes);
    plugins
}

const VTABLE: &str = "sdk/abi/src/vtable.rs";
const SHIM: &str = "sdk/plugin/src/shim/mod.rs";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_of_an_older_sdk_loads_and_the_methods_it_lacks_are_absent() {
    // The SDK before functions had methods of their own.
    let file = build(
        "older",
        901,
        &[
            change(
                VTABLE,
                "pub function_open: extern \"C\" fn(Call, RVec<u8>),",
                "",
            ),
            change(
                VTABLE,
                "pub function_call: extern \"C\" fn(Call, u64, MessageBatch, RVec<u8>),",
                "",
            ),
            change(
                VTABLE,
                "pub function_close: extern \"C\" fn(Call, u64),",
                "",
            ),
            change(
                VTABLE,
                "    /// Opens a processor, transform or error handler: an",
                "    // ",
            ),
            change(VTABLE, "    /// Calls it: function, messages,", "    // "),
            change(VTABLE, "    /// error handler).", "    //"),
            change(VTABLE, "    /// Closes it.\n", ""),
            change(SHIM, "function_open: functions::open,", ""),
            change(SHIM, "function_call: functions::call,", ""),
            change(SHIM, "function_close: functions::close,", ""),
        ],
    );
    let plugins = works(&file, "older").await;
    let failure = open_same(&plugins, "older").await.unwrap_err();
    assert_eq!(failure.code, "not_supported", "{failure}");
}

/// A later SDK: one method, one outcome code, one attribute and one kind of function more.
const NEWER: [Change; 10] = [
    change(
        VTABLE,
        "pub function_close: extern \"C\" fn(Call, u64),",
        "pub function_close: extern \"C\" fn(Call, u64),\n    /// New.\n    pub juggle: extern \"C\" fn(Call, u64),",
    ),
    change(
        SHIM,
        "function_close: functions::close,",
        "function_close: functions::close,\n            juggle: functions::close,",
    ),
    change(
        "sdk/abi/src/codes.rs",
        "        /// Not until a person acts.\n        NeverAlone = 5,",
        "        /// Not until a person acts.\n        NeverAlone = 5,\n        /// New.\n        NextYear = 77,",
    ),
    change(
        "sdk/plugin/src/outcome.rs",
        "    /// The network took it and nothing ever confirms",
        "    /// New.\n    pub fn next_year() -> Self {\n        Self::new(Applied::Yes, Scope::Write, Advice::NextYear, None)\n    }\n\n    /// The network took it and nothing ever confirms",
    ),
    change(
        "sdk/plugin/src/shim/reply.rs",
        "attributes: Span::EMPTY,",
        "attributes: {\n            let value = Span::push(&mut reply.bytes, b\"new\");\n            reply.attributes.push(consign_abi::AttributeRow { id: 4242, value });\n            Span { start: 0, len: 1 }\n        },",
    ),
    change(
        "sdk/manifest/src/manifest.rs",
        "    /// Changes a message; an error discards it.\n    Transform,",
        "    /// Changes a message; an error discards it.\n    Transform,\n    /// New.\n    Juggler,",
    ),
    change(
        "sdk/manifest/src/needs.rs",
        "| PluginKind::ErrorHandler => 0,",
        "| PluginKind::ErrorHandler => 0,\n        PluginKind::Juggler => 3,",
    ),
    change(
        "sdk/plugin/src/functions.rs",
        "manifest: manifest::<T::Config>(PluginKind::Transform, T::NAME, T::TITLE),",
        "manifest: manifest::<T::Config>(PluginKind::Juggler, T::NAME, T::TITLE),",
    ),
    change(
        "tiny/src/lib.rs",
        ".processor::<Same>()",
        ".processor::<Same>().transform::<Other>()",
    ),
    change(
        "tiny/src/lib.rs",
        "_same\");",
        "_same variant_newer_other\");",
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_of_a_newer_sdk_loads_and_what_the_host_does_not_know_is_left_out() {
    let file = build("newer", 902, &NEWER);
    let plugins = works(&file, "newer").await;
    open_same(&plugins, "newer").await.unwrap();
    let manifests = plugins.manifests();
    let names: Vec<&str> = manifests[0]
        .functions
        .iter()
        .map(|f| f.name.as_str())
        .collect();
    assert_eq!(
        names,
        ["variant_newer_same"],
        "a kind of a later host is not offered"
    );
    assert!(
        plugins.files()[0]
            .note
            .provides
            .iter()
            .any(|name| name == "variant_newer_other")
    );
    verify_file(&file).expect("it is a plugin");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_with_a_code_of_a_newer_sdk_is_read_as_the_cautious_one() {
    let mut changes = NEWER.to_vec();
    // The last one names what this variant provides.
    changes.pop();
    changes.push(change(
        "tiny/src/lib.rs",
        "_same\");",
        "_same variant_newest_other\");",
    ));
    changes.push(change(
        "tiny/src/lib.rs",
        "Outcome::delivered()",
        "Outcome::next_year()",
    ));
    let file = build("newest", 904, &changes);
    let (_, outcome) = write_one(&file, "newest").await;
    assert_eq!(
        (outcome.applied, outcome.scope, outcome.advice),
        (Applied::Maybe, Scope::Write, Advice::Now)
    );
}

#[test]
fn a_plugin_whose_data_types_differ_is_refused() {
    let file = build(
        "other",
        903,
        &[change(
            "sdk/abi/src/data.rs",
            "pub struct SettleRow {",
            "pub struct SettleRow {\n    /// New.\n    pub more: u64,",
        )],
    );
    let refusals = verify_file(&file).unwrap_err();
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    let (start, _) = env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap();
    let other_version = format!("{start}.903");
    let message = format!("[{}] {}", refusals[0].code, refusals[0].message)
        .replace(&other_version, "[other]")
        .replace(env!("CARGO_PKG_VERSION"), "[version]");
    insta::assert_snapshot!(message);
}
