//! One shape for every connector: over all manifests the same thing has the same name, every field and
//! operation says what it is, and the example names what the connector can do. (That each example
//! checks is held by `cli`.) An exception stands in [`WAIVERS`], with its reason.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use consign_e2e::{built, consign};
use serde_json::Value;
use std::collections::BTreeMap;

/// What is called otherwise elsewhere, and its name here.
const CANONICAL: [(&str, &str); 22] = [
    ("url", "endpoint, or servers where there are several"),
    ("uri", "endpoint, or servers where there are several"),
    ("brokers", "servers"),
    ("hosts", "servers"),
    ("bootstrap_servers", "servers"),
    ("user", "auth.username"),
    ("username", "auth.username"),
    ("login", "auth.username"),
    ("password", "auth.password"),
    ("passwd", "auth.password"),
    ("ssl", "tls"),
    ("use_tls", "tls"),
    ("ca_cert", "tls.ca_file"),
    ("ca_file", "tls.ca_file"),
    ("cert_file", "tls.cert_file"),
    ("client_cert", "tls.cert_file"),
    ("key_file", "tls.key_file"),
    ("timeout", "timeouts.request, or the send's own timeout"),
    ("connect_timeout", "timeouts.connect"),
    ("request_timeout", "timeouts.request"),
    ("retries", "the send's retry: connectors do not retry"),
    ("batch_size", "the send's batch: connectors do not batch"),
];

/// Groups that come from the SDK: the field's name, and the definition it must refer to.
const GROUPS: [(&str, &str); 3] = [
    ("tls", "Tls"),
    ("auth", "BasicAuth"),
    ("timeouts", "Timeouts"),
];

/// Exceptions: where, which field, and why it is right there.
const WAIVERS: [(&str, &str, &str); 1] = [(
    "operation http.receive",
    "auth",
    "it lists the senders that may come in; BasicAuth is what a client shows",
)];

/// Connectors without a conformance test, and why.
const NOT_PROVEN: [(&str, &str); 1] = [("events", SOURCE_IS_A_HOST)];

/// Connectors whose folder lacks a file that others have, and why.
const WITHOUT: [(&str, &str, &str); 1] = [("events", "src/outcome.rs", "it writes nothing")];

const SOURCE_IS_A_HOST: &str =
    "it reads a host, which makes its own events: the test `notices` kills one meanwhile";

/// Schemas of connections and operations by name (`connection nats`, `operation nats.publish`).
fn schemas() -> BTreeMap<String, Value> {
    let plugins = built().plugins.display().to_string();
    let output = consign(&["schema", "--plugins", &plugins]);
    assert!(output.status.success());
    let schema: Value = serde_json::from_slice(&output.stdout).unwrap();
    schema["$defs"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(name, _)| name.starts_with("connection ") || name.starts_with("operation "))
        .map(|(name, schema)| (name.clone(), schema.clone()))
        .collect()
}

/// Every field with the place it stands at: (schema, group or "", field, its schema). Groups are the
/// schema's own definitions.
fn fields(schemas: &BTreeMap<String, Value>) -> Vec<(&str, &str, &str, &Value)> {
    let mut all = Vec::new();
    for (name, schema) in schemas {
        let own = std::iter::once(("", schema));
        let groups = schema["$defs"].as_object().into_iter().flatten();
        let groups = groups.map(|(group, schema)| (group.as_str(), schema));
        for (group, schema) in own.chain(groups) {
            for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
                all.push((name.as_str(), group, field.as_str(), schema));
            }
        }
    }
    all
}

fn waived(place: &str, field: &str) -> bool {
    WAIVERS
        .iter()
        .any(|(waived, name, _)| *waived == place && *name == field)
}

#[test]
fn there_are_schemas_and_no_waiver_is_left_over() {
    let schemas = schemas();
    assert!(schemas.len() >= 8, "{:?}", schemas.keys());
    for (place, field, reason) in WAIVERS {
        assert!(
            reason.len() > 20,
            "{place}.{field} is waived without a reason"
        );
        let known = fields(&schemas)
            .iter()
            .any(|(name, _, own, _)| *name == place && *own == field);
        assert!(known, "{place}.{field} is waived and does not exist");
    }
}

#[test]
fn the_same_thing_has_the_same_name_everywhere() {
    let schemas = schemas();
    let mut faults = Vec::new();
    for (place, group, field, _) in fields(&schemas) {
        let snake = field
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if !snake {
            faults.push(format!("{place}: `{field}` is not snake_case"));
        }
        let shared = GROUPS.iter().any(|(_, definition)| *definition == group);
        let other = CANONICAL.iter().find(|(name, _)| *name == field);
        if let Some((_, canonical)) = other
            && !shared
            && !waived(place, field)
        {
            faults.push(format!("{place}: `{field}` is called {canonical} here"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn shared_groups_are_the_sdks_own() {
    let schemas = schemas();
    let mut first: BTreeMap<&str, (&str, &Value)> = BTreeMap::new();
    let mut faults = Vec::new();
    for (place, group, field, schema) in fields(&schemas) {
        let Some((_, definition)) = GROUPS.iter().find(|(name, _)| *name == field) else {
            continue;
        };
        if !group.is_empty() || waived(place, field) {
            continue;
        }
        if !schema.to_string().contains(&format!("/$defs/{definition}")) {
            faults.push(format!(
                "{place}: `{field}` is not the SDK's {definition}: {schema}"
            ));
        }
    }
    for (name, schema) in &schemas {
        for (_, definition) in GROUPS {
            let Some(own) = schema["$defs"].get(definition) else {
                continue;
            };
            // References carry the schema's own name; the rest must be the same.
            let (known, same) = first.entry(definition).or_insert((name, own));
            let names = |schema: &Value| {
                schema["properties"].as_object().map(|fields| {
                    fields
                        .iter()
                        .map(|(n, f)| (n.clone(), f["description"].clone()))
                        .collect::<Vec<_>>()
                })
            };
            if names(own) != names(same) {
                faults.push(format!(
                    "{name} and {known} have different {definition} groups"
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_connection_operation_and_field_says_what_it_is() {
    let schemas = schemas();
    let mut faults = Vec::new();
    for (name, schema) in &schemas {
        if schema["additionalProperties"] != Value::Bool(false) {
            faults.push(format!("{name}: takes unknown fields without a word"));
        }
    }
    for (place, group, field, schema) in fields(&schemas) {
        let text = schema["description"].as_str().unwrap_or_default();
        if text.trim().len() < 8 {
            faults.push(format!("{place}: `{group}.{field}` has no doc comment"));
        } else if !text.trim_end().ends_with(['.', ')', '`', ':', '"']) {
            faults.push(format!(
                "{place}: `{group}.{field}` is no sentence: {text:?}"
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Each plugin's folder has the files that every plugin has, and its example uses each operation that
/// needs no other plugin of its own.
#[test]
fn every_plugin_has_the_same_files_and_an_example_that_names_its_operations() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins");
    let schemas = schemas();
    let mut faults = Vec::new();
    for (name, _) in schemas
        .iter()
        .filter(|(name, _)| name.starts_with("connection "))
    {
        let connector = name.strip_prefix("connection ").unwrap();
        let folder = root.join(connector);
        for file in [
            "Cargo.toml",
            "src/lib.rs",
            "src/config.rs",
            "src/outcome.rs",
            "example.yaml",
        ] {
            let waived = WITHOUT
                .iter()
                .any(|(of, what, _)| *of == connector && *what == file);
            if !waived && !folder.join(file).is_file() {
                faults.push(format!("{connector}: there is no {file}"));
            }
        }
        let proven = ["tests/conformance.rs", "tests/conformance/main.rs"];
        let waived = NOT_PROVEN.iter().any(|(waived, _)| *waived == connector);
        if !waived && !proven.iter().any(|file| folder.join(file).is_file()) {
            faults.push(format!("{connector}: there is no tests/conformance.rs"));
        }
        let example = std::fs::read_to_string(folder.join("example.yaml")).unwrap_or_default();
        let prefix = format!("operation {connector}.");
        for operation in schemas.keys().filter(|name| name.starts_with(&prefix)) {
            let operation = operation.strip_prefix("operation ").unwrap();
            if !example.contains(operation) {
                faults.push(format!(
                    "{connector}: example.yaml does not show {operation}"
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
