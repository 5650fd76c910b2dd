//! `consign promises`: what each operation declares.

use crate::commands::load_plugins;
use crate::output::{CliError, Output, table};
use consign_manifest::{DeliveryType, OperationDeclaration};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Debug, Serialize)]
struct Row {
    connector: String,
    operation: String,
    title: String,
    /// Names the declaration in records of conformance runs.
    declaration_digest: String,
    #[serde(flatten)]
    declaration: OperationDeclaration,
}

pub fn run(out: Output, folders: &[PathBuf], markdown: bool) -> Result<(), CliError> {
    let plugins = load_plugins(folders)?;
    let manifests: Vec<_> = plugins.manifests().iter().map(|m| (**m).clone()).collect();
    if markdown {
        let page = consign_promise::table::render(&manifests, &[], &BTreeMap::new()).map_err(
            |errors| {
                CliError::failed(
                    errors
                        .iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join("\n"),
                )
            },
        )?;
        return out.text(&page);
    }
    let mut rows: Vec<Row> = manifests
        .iter()
        .flat_map(|manifest| &manifest.connectors)
        .flat_map(|connector| {
            connector.operations.iter().map(|operation| Row {
                connector: connector.title.clone(),
                operation: operation.id.clone(),
                title: operation.title.clone(),
                declaration_digest: consign_promise::proven::declaration_digest(
                    &operation.declaration,
                ),
                declaration: operation.declaration.clone(),
            })
        })
        .collect();
    rows.sort_by(|a, b| a.operation.cmp(&b.operation));
    out.show(&rows, |rows| {
        let cells: Vec<Vec<String>> = rows
            .iter()
            .map(|row| match &row.declaration {
                OperationDeclaration::Sink(sink) => vec![
                    row.operation.clone(),
                    consign_promise::declared_level(sink).words().to_owned(),
                    consign_promise::table::repeat_words(&sink.repeat),
                    consign_promise::table::key_words(&sink.key),
                ],
                OperationDeclaration::Source(source) => vec![
                    row.operation.clone(),
                    match source.delivery {
                        DeliveryType::OffsetTrackedCumulative => {
                            "offset-tracked, one position for all before it"
                        }
                        DeliveryType::OffsetTrackedIndividual => {
                            "offset-tracked, a position of its own for each message"
                        }
                        DeliveryType::SessionBased => "session-based",
                    }
                    .to_owned(),
                    String::new(),
                    String::new(),
                ],
            })
            .collect();
        table(
            &[
                "operation",
                "promise",
                "destination drops a repeat",
                "write key",
            ],
            &cells,
            "no operations",
        )
    })
}
