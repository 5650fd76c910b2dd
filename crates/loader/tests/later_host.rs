//! A plugin of this SDK in a later host: one whose vtable has a method more, and whose batches carry an
//! attribute, whose codes have a number and whose manifest has a kind that this SDK does not know.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "test code"
)]

mod common;

use common::library;
use common::variant::{Change, build_host, change};
use std::process::Command;

const CODES: &str = "sdk/abi/src/codes.rs";

const LATER: [Change; 6] = [
    change(
        "sdk/abi/src/vtable.rs",
        "pub function_close: extern \"C\" fn(Call, u64),",
        "pub function_close: extern \"C\" fn(Call, u64),\n    /// New.\n    pub juggle: extern \"C\" fn(Call, u64),",
    ),
    change(
        "crates/loader/src/batch.rs",
        "        let first_attribute = batch.attributes.len();\n        if",
        "        let first_attribute = batch.attributes.len();\n        let value = put(batch, b\"new\")?;\n        batch.attributes.push(AttributeRow { id: 4242, value });\n        if",
    ),
    change(
        CODES,
        "        /// Not until a person acts.\n        NeverAlone = 5,",
        "        /// Not until a person acts.\n        NeverAlone = 5,\n        /// New.\n        NextYear = 77,",
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
        "crates/loader/src/check.rs",
        "PluginKind::Source | PluginKind::Sink => \"function\"",
        "_ => \"function\"",
    ),
];

const MAIN: &str = r#"
use consign_loader::*;
use consign_manifest::PluginKind;
use serde_json::json;
use std::time::Duration;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let soon = Duration::from_secs(20);
    let plugins = Plugins::load(&LoadOptions {
        folders: vec![std::env::args().nth(1).expect("a plugin").into()],
        ..LoadOptions::default()
    })
    .unwrap();
    let request = OpenConnection { connector: "zoo".into(), config: json!({}), names: Names::default() };
    let connection = plugins.open_connection(request, soon).await.unwrap();
    let sink = connection.open_sink("zoo.write", json!({}), Names::default(), soon).await.unwrap();
    let mut batch = BatchBuilder::default();
    batch.push(&WriteParts { body: b"x", ..WriteParts::default() }, [], []).unwrap();
    println!("write: {:?}", sink.submit(batch.finish(), soon).await.outcomes[0].applied);
    let open = OpenFunction {
        kind: PluginKind::Processor, name: "zoo_upper".into(), config: json!({}), names: Names::default(),
    };
    let function = plugins.open_function(open, soon).await.unwrap();
    let message = FunctionMessage { body: b"abc".to_vec(), ..FunctionMessage::default() };
    match &function.process(&[message], soon).await.unwrap()[0] {
        FunctionAnswer::Changed(message) => println!("processor: {}", String::from_utf8_lossy(&message.body)),
        failed => println!("processor: {failed:?}"),
    }
    let open = OpenFunction {
        kind: PluginKind::Juggler, name: "zoo_upper".into(), config: json!({}), names: Names::default(),
    };
    println!("juggler: {}", plugins.open_function(open, soon).await.unwrap_err().code);
}
"#;

#[test]
fn a_plugin_of_this_sdk_loads_in_a_host_that_has_grown() {
    let host = build_host("later", 905, &LATER, MAIN);
    let output = Command::new(host).arg(library("zoo")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(
        said,
        "write: Yes\nprocessor: ABC\njuggler: no_such_function\n"
    );
}
