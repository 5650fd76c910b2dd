//! Adapters compiled from YAML, and messages to send through them.

use bytes::Bytes;
use consign_config::{Catalog, Config, Problem, parse};
use consign_manifest::{
    BatchKind, ConnectorManifest, DeliveryType, FunctionManifest, Identity, KeyPlacement, Manifest,
    OperationDeclaration, OperationManifest, PluginKind, Promise, Repeat, RepeatKind,
    SinkDeclaration, SourceDeclaration, Window,
};
use consign_pipeline::{Matched, Message, Outcome, Program};
use serde_json::json;
use std::path::Path;

fn catalog() -> Catalog {
    let operation = |id: &str, declaration| OperationManifest {
        id: id.into(),
        title: id.into(),
        description: String::new(),
        config_schema: json!({ "properties": {
            "to": { "type": "string", "format": "consign-template" },
            "nested": { "properties": { "names": { "items": { "type": "string", "format": "consign-template" } } } },
        } }),
        declaration,
    };
    let sink = OperationDeclaration::Sink(SinkDeclaration {
        promise: Promise::AtLeastOnce,
        unconfirmed: false,
        repeat: Repeat {
            kind: RepeatKind::SecondCopy,
            condition: None,
            window: Window::None,
        },
        key: KeyPlacement::On("header".into()),
        batch: BatchKind::Independent,
        sealed: false,
        note: String::new(),
    });
    let source = OperationDeclaration::Source(SourceDeclaration {
        delivery: DeliveryType::SessionBased,
        identity: Identity::None,
        redelivery_bound_ms: None,
        note: String::new(),
    });
    let function = |kind, name: &str| FunctionManifest {
        kind,
        name: name.into(),
        title: String::new(),
        description: String::new(),
        config_schema: json!({}),
    };
    Catalog::new(
        vec![Manifest {
            format: 1,
            name: "x".into(),
            version: "0.1.0".into(),
            connectors: vec![ConnectorManifest {
                name: "x".into(),
                title: "X".into(),
                description: String::new(),
                config_schema: json!({}),
                operations: vec![operation("x.write", sink), operation("x.read", source)],
                example: String::new(),
            }],
            functions: vec![
                function(PluginKind::Transform, "shout"),
                function(PluginKind::Processor, "audit"),
            ],
        }],
        vec![],
    )
}

/// A configuration with one adapter, `a`. `rest` is indented to stand under it.
pub fn config(rest: &str) -> Config {
    let rest: String = rest.lines().map(|line| format!("    {line}\n")).collect();
    let source = format!(
        "connections: {{ x: {{ connector: x }} }}\nadapters:\n  a:\n    source: {{ connection: x, operation: x.read }}\n{rest}"
    );
    parse(Path::new("c.yaml"), &source, &catalog())
        .unwrap_or_else(|problems| panic!("{source}\n{}", lines(&problems)))
}

pub fn compile(rest: &str) -> Result<Program, Vec<Problem>> {
    Program::compile(&config(rest).adapters[0])
}

pub fn program(rest: &str) -> Program {
    compile(rest).unwrap_or_else(|problems| panic!("{}", lines(&problems)))
}

/// One route that claims all and has this transform.
pub fn transform(vrl: &str) -> Program {
    program(&format!(
        "routes:\n  - name: r\n    transforms:\n      - vrl: |\n{}\n    send: [{{ id: s, connection: x, operation: x.write }}]",
        vrl.lines()
            .map(|l| format!("          {l}"))
            .collect::<Vec<_>>()
            .join("\n")
    ))
}

/// What compiling tells of the faults.
pub fn told(rest: &str) -> String {
    compile(rest)
        .err()
        .map_or(String::new(), |problems| lines(&problems))
}

pub fn lines(problems: &[Problem]) -> String {
    problems.iter().map(|p| format!("{p}\n")).collect()
}

pub fn message(body: impl Into<Bytes>) -> Message {
    Message {
        body: body.into(),
        ..Message::default()
    }
}

pub fn matched(program: &Program, message: &Message) -> Matched {
    match program.evaluate(message).outcome {
        Outcome::Matched(matched) => matched,
        other => panic!("{other:?}"),
    }
}

/// The body after the only route.
pub fn body_after(program: &Program, body: &str) -> String {
    let after = matched(program, &message(body.to_owned())).message.body;
    String::from_utf8(after.to_vec()).unwrap()
}
