//! The JSON schema of a configuration: the host's own, and with every loaded plugin's in it.

use crate::catalog::kind_of;
use crate::{Catalog, Config};
use consign_manifest::PluginKind;
use serde_json::{Map, Value, json};

/// The host's own schema; plugins' settings are any mapping.
pub(crate) fn host() -> Value {
    schemars::schema_for!(Config).to_value()
}

/// The schema of a whole configuration with these plugins, for editors and `consign schema`.
#[must_use]
pub fn schema(catalog: &Catalog) -> Value {
    let mut schema = host();
    let mut definitions = Map::new();
    let mut connections = Vec::new();
    let mut sinks = Vec::new();
    let mut sources = Vec::new();
    for connector in catalog.connectors() {
        let name = format!("connection {}", connector.name);
        connections.push(choice("connector", &connector.name, &name));
        definitions.insert(name.clone(), embedded(&connector.config_schema, &name));
        for operation in &connector.operations {
            let name = format!("operation {}", operation.id);
            let list = match kind_of(operation) {
                PluginKind::Source => &mut sources,
                _ => &mut sinks,
            };
            list.push(choice("operation", &operation.id, &name));
            definitions.insert(name.clone(), embedded(&operation.config_schema, &name));
        }
    }
    let mut functions = |kind: PluginKind, key: &str| -> Vec<Value> {
        catalog
            .functions(kind)
            .map(|function| {
                let name = format!("{key} {}", function.name);
                definitions.insert(name.clone(), embedded(&function.config_schema, &name));
                choice(key, &function.name, &name)
            })
            .collect()
    };
    let transforms = functions(PluginKind::Transform, "transform");
    let processors = functions(PluginKind::Processor, "processor");
    let handlers = functions(PluginKind::ErrorHandler, "handler");
    for (name, choices) in [
        ("Connection", connections),
        ("Send", sinks),
        ("SourceConfig", sources),
        ("Transform", transforms),
        ("Processor", processors),
        ("OnFailure", handlers),
    ] {
        let target = schema.pointer_mut(&format!("/$defs/{name}"));
        if let (Some(Value::Object(target)), false) = (target, choices.is_empty()) {
            target.insert("allOf".to_owned(), Value::Array(choices));
        }
    }
    if let Some(Value::Object(all)) = schema.get_mut("$defs") {
        all.extend(definitions);
    }
    schema
}

/// "If `key` is `value`, then `config` is as defined under `definition`."
fn choice(key: &str, value: &str, definition: &str) -> Value {
    let target = format!("#/$defs/{}", definition.replace(' ', "%20"));
    json!({
        "if": { "properties": { key: { "const": value } }, "required": [key] },
        "then": { "properties": { "config": { "$ref": target } } }
    })
}

/// A plugin's schema as a part of another: its references are moved along with it.
fn embedded(schema: &Value, name: &str) -> Value {
    let mut schema = schema.clone();
    if let Value::Object(object) = &mut schema {
        object.remove("$schema");
    }
    let base = format!("#/$defs/{}", name.replace(' ', "%20"));
    move_references(&mut schema, &base);
    schema
}

fn move_references(schema: &mut Value, base: &str) {
    match schema {
        Value::Object(object) => {
            for (key, value) in object {
                match (key.as_str(), &mut *value) {
                    ("$ref", Value::String(target)) => {
                        if let Some(pointer) = target.strip_prefix('#') {
                            *target = format!("{base}{pointer}");
                        }
                    }
                    _ => move_references(value, base),
                }
            }
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| move_references(item, base)),
        _ => {}
    }
}
