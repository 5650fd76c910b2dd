//! What a manifest lacks for its readers. None of it stops a host from loading the plugin; `consign plugins
//! verify` and the conformance kit insist on it.

use crate::Manifest;
use serde_json::Value;

/// How deep settings inside settings are followed; a schema that refers to itself ends here.
const DEPTH: usize = 8;

/// Everything that is missing, one sentence each, with its place.
#[must_use]
pub fn faults(manifest: &Manifest) -> Vec<String> {
    let mut faults = Vec::new();
    for connector in &manifest.connectors {
        let place = format!("connector {}", connector.name);
        text(
            &place,
            &connector.title,
            &connector.description,
            &mut faults,
        );
        schema(&place, &connector.config_schema, &mut faults);
        if connector.example.trim().is_empty() {
            faults.push(format!(
                "{place} has no example: add `.example(include_str!(\"../example.yaml\"))`"
            ));
        }
        for operation in &connector.operations {
            let place = format!("operation {}", operation.id);
            text(
                &place,
                &operation.title,
                &operation.description,
                &mut faults,
            );
            schema(&place, &operation.config_schema, &mut faults);
        }
    }
    for function in &manifest.functions {
        let place = format!("{:?} {}", function.kind, function.name);
        text(&place, &function.title, &function.description, &mut faults);
        schema(&place, &function.config_schema, &mut faults);
    }
    faults
}

fn text(place: &str, title: &str, description: &str, faults: &mut Vec<String>) {
    if title.trim().is_empty() {
        faults.push(format!("{place} has no title"));
    }
    if description.trim().is_empty() {
        faults.push(format!(
            "{place} has no reference text: write a doc comment on its config struct"
        ));
    }
}

fn schema(place: &str, schema: &Value, faults: &mut Vec<String>) {
    fields(place, schema, schema, "", DEPTH, faults);
}

fn fields(
    place: &str,
    root: &Value,
    schema: &Value,
    prefix: &str,
    depth: usize,
    faults: &mut Vec<String>,
) {
    let properties = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array);
    for name in required.into_iter().flatten().filter_map(Value::as_str) {
        if !properties.is_some_and(|properties| properties.contains_key(name)) {
            faults.push(format!(
                "{place} requires `{prefix}{name}`, which its schema does not have"
            ));
        }
    }
    // In order of their names, however the schema holds them.
    let mut properties: Vec<_> = properties.into_iter().flatten().collect();
    properties.sort_by_key(|(name, _)| *name);
    for (name, property) in properties {
        let target = resolve(root, property);
        let documented = [property, target].iter().any(|value| {
            value
                .get("description")
                .and_then(Value::as_str)
                .is_some_and(|text| !text.trim().is_empty())
        });
        if !documented {
            faults.push(format!(
                "{place}: `{prefix}{name}` has no description: write a doc comment on the field"
            ));
        }
        if depth > 0 {
            let prefix = format!("{prefix}{name}.");
            fields(place, root, target, &prefix, depth - 1, faults);
        }
    }
}

/// Follows references, and `anyOf` with null, to the schema they mean.
#[must_use]
pub fn resolve<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
    for _ in 0..DEPTH {
        let options = schema.get("anyOf").and_then(Value::as_array);
        if let Some(only) = options.and_then(|options| {
            let mut real = options
                .iter()
                .filter(|option| option.get("type") != Some(&Value::from("null")));
            real.next().filter(|_| real.next().is_none())
        }) {
            schema = only;
            continue;
        }
        let target = schema
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|reference| root.pointer(reference.strip_prefix('#')?));
        match target {
            Some(target) => schema = target,
            None => break,
        }
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConnectorManifest, MANIFEST_FORMAT};
    use serde_json::json;

    fn manifest(config_schema: Value, example: &str) -> Manifest {
        let json = json!({
            "format": MANIFEST_FORMAT, "name": "x", "version": "1.0.0", "connectors": [], "functions": []
        });
        let mut manifest: Manifest = serde_json::from_value(json).unwrap();
        manifest.connectors.push(ConnectorManifest {
            name: "x".to_owned(),
            title: "X".to_owned(),
            description: "A connection.".to_owned(),
            config_schema,
            operations: Vec::new(),
            example: example.to_owned(),
        });
        manifest
    }

    #[test]
    fn everything_missing_is_told_at_once() {
        let schema = json!({
            "required": ["ghost"],
            "properties": {
                "url": { "type": "string" },
                "fine": { "type": "string", "description": "Fine." },
                "tls": { "anyOf": [{ "$ref": "#/$defs/Tls" }, { "type": "null" }] }
            },
            "$defs": { "Tls": { "description": "TLS.", "properties": { "ca": {} } } }
        });
        assert_eq!(
            faults(&manifest(schema, "")),
            [
                "connector x requires `ghost`, which its schema does not have",
                "connector x: `tls.ca` has no description: write a doc comment on the field",
                "connector x: `url` has no description: write a doc comment on the field",
                "connector x has no example: add `.example(include_str!(\"../example.yaml\"))`",
            ]
        );
        assert!(faults(&manifest(json!({}), "adapters: {}")).is_empty());
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let schema = json!({
            "properties": { "again": { "$ref": "#/$defs/A" } },
            "$defs": { "A": { "description": "A.", "properties": { "again": { "$ref": "#/$defs/A" } } } }
        });
        assert!(faults(&manifest(schema, "x")).is_empty());
    }
}
