//! The example of the documentation reads as it is written.

mod common;

use common::{EXAMPLE, catalog, lines, read};
use consign_config::{
    Delivery, Environment, NoEnvironment, OnWindowPassed, Order, Require, first_look, schema,
};
use serde_json::json;
use std::path::{Path, PathBuf};

#[test]
fn the_example_reads_as_written() {
    let config = read(EXAMPLE).unwrap_or_else(|p| panic!("{}", lines(&p)));
    assert_eq!(lines(&config.warnings), "");
    let adapter = config.adapter("payments").unwrap();
    assert_eq!(adapter.key.as_ref().unwrap(), &".body.type");
    let [completed, rest] = adapter.routes.as_slice() else {
        panic!()
    };
    assert!(rest.send.is_empty() && rest.patterns.is_empty());
    assert_eq!(completed.patterns, ["payment.*"]);
    let [billing, receipt] = completed.send.as_slice() else {
        panic!()
    };
    assert_eq!(billing.order, Order::ByKey(".body.invoice".into()));
    assert_eq!(billing.retry.max_age.unwrap().as_ms(), 3_600_000);
    assert_eq!(billing.retry.backoff.max.as_ms(), 300_000);
    assert_eq!(
        (billing.batch.max_writes, billing.batch.linger.as_ms()),
        (500, 5)
    );
    assert_eq!(billing.in_flight_limit(), 1_000);
    assert_eq!(billing.quota.as_bytes(), 2 << 30);
    assert_eq!(billing.require, Some(Require::EffectivelyOnce));
    assert_eq!(billing.window_passed(None), OnWindowPassed::Park);
    assert_eq!(receipt.window_passed(None), OnWindowPassed::Resend);
    assert_eq!(receipt.delivery, Delivery::Buffered);
    assert_eq!(receipt.order, Order::Strict);
    assert_eq!(receipt.quota.as_bytes(), 1 << 30);
    let [template] = receipt.config.templates.as_slice() else {
        panic!()
    };
    assert_eq!(
        (template.pointer.as_str(), template.text.place().line),
        ("/subject", 41)
    );
    assert_eq!(config.class("bulk").unwrap().rate_per_s, Some(500.0));
    assert_eq!(config.write_key.name(), "consign.write-key");
}

#[test]
fn paths_are_relative_to_the_file() {
    let config =
        consign_config::parse(Path::new("/etc/consign/main.yaml"), EXAMPLE, &catalog()).unwrap();
    assert_eq!(config.data_dir(), Path::new("/etc/consign/./data"));
    assert_eq!(
        config.plugin_folders(),
        [PathBuf::from("/etc/consign/./plugins")]
    );
    assert_eq!(
        config.connection("ledger").unwrap().config.value["path"],
        "/etc/consign/./ledger.db"
    );
}

#[test]
fn the_first_look_needs_no_plugin() {
    let look = first_look(Path::new("/etc/c.yaml"), EXAMPLE).unwrap();
    assert_eq!(look.plugin_folders, [PathBuf::from("/etc/./plugins")]);
    assert_eq!(look.data_dir, Path::new("/etc/./data"));
    let names: Vec<&str> = look.connectors.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["http", "nats", "sqlite"]);
    assert_eq!(look.functions[0].name, "isolate_poison");
    assert_eq!(look.functions[0].name.place().line, 33);
    assert!(first_look(Path::new("c.yaml"), "a: [").is_err());
    assert!(
        first_look(Path::new("c.yaml"), "- 1")
            .unwrap()
            .connectors
            .is_empty()
    );
}

struct Fixed;

impl Environment for Fixed {
    fn variable(&self, name: &str) -> Option<String> {
        match name {
            "TOKEN" => Some("s3cret".into()),
            "PORT" => Some("8080".into()),
            "BAD" => Some("no number".into()),
            "DIR" => Some("sub".into()),
            _ => None,
        }
    }

    fn file(&self, path: &Path) -> Result<String, String> {
        match path.to_str() {
            Some("/etc/c/token.txt") => Ok("from file\n".into()),
            _ => Err("no such file".into()),
        }
    }
}

#[test]
fn secrets_stay_placeholders_until_they_are_filled_in() {
    let source = r#"
console: { listen: "0.0.0.0:1", token: "${env:TOKEN}" }
connections:
  a: { connector: nats, config: { servers: ["x${env:TOKEN}y$${z}"], token: "${file:token.txt}" } }
  b: { connector: nats, config: { servers: [a], token: hunter2 } }
  c: { connector: http, config: { listen: "${env:NOPE}", port: "${env:PORT}" } }
  d: { connector: http, config: { listen: x, port: "${env:BAD}" } }
  e: { connector: sqlite, config: { path: "${env:DIR}/x.db" } }
"#;
    let config = consign_config::parse(Path::new("/etc/c/c.yaml"), source, &catalog())
        .unwrap_or_else(|p| panic!("{}", lines(&p)));
    let names: Vec<String> = config.secrets().iter().map(|s| s.name.clone()).collect();
    assert_eq!(
        names,
        ["TOKEN", "TOKEN", "token.txt", "NOPE", "PORT", "BAD", "DIR"]
    );

    let shown = config.redacted();
    assert_eq!(shown["console"]["token"], "${env:TOKEN}");
    assert_eq!(
        shown["connections"]["a"]["config"]["token"],
        "${file:token.txt}"
    );
    assert_eq!(shown["connections"]["b"]["config"]["token"], "***");
    assert!(!shown.to_string().contains("hunter2"));

    let (filled, problems) = config.with_secrets(&Fixed);
    let settings = |name: &str| &filled.connection(name).unwrap().config.value;
    assert_eq!(
        settings("a"),
        &json!({ "servers": ["xs3crety${z}"], "token": "from file" })
    );
    assert_eq!(
        settings("c"),
        &json!({ "listen": "${env:NOPE}", "port": 8080 })
    );
    assert_eq!(settings("e"), &json!({ "path": "/etc/c/sub/x.db" }));
    assert_eq!(
        filled.console.as_ref().unwrap().token.as_ref().unwrap(),
        &"s3cret"
    );
    insta::assert_snapshot!(lines(&problems));
    let (_, unset) = config.with_secrets(&NoEnvironment);
    assert_eq!(unset.len(), 7, "{}", lines(&unset));
}

#[test]
fn a_secret_never_shows_in_what_show_config_prints_after_filling_in() {
    let source = "connections:\n  a: { connector: nats, config: { servers: [a], token: \"${env:TOKEN}\" } }\n";
    let (filled, _) = read(source).unwrap().with_secrets(&Fixed);
    assert!(!filled.redacted().to_string().contains("s3cret"));
}

#[test]
fn the_schema_holds_the_host_and_every_plugin() {
    let schema = schema(&catalog());
    assert_eq!(schema["properties"]["max_in_flight"]["default"], 256);
    assert!(
        schema["properties"]["data_dir"]["description"]
            .as_str()
            .unwrap()
            .contains("One host per folder")
    );
    assert_eq!(
        schema["$defs"]["Send"]["required"],
        json!(["id", "connection", "operation"])
    );
    let choices = schema["$defs"]["Connection"]["allOf"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    assert_eq!(
        choices[0]["then"]["properties"]["config"]["$ref"],
        "#/$defs/connection%20http"
    );
    let tls = &schema["$defs"]["connection http"]["properties"]["tls"]["anyOf"][0]["$ref"];
    assert_eq!(tls, "#/$defs/connection%20http/$defs/Tls");
    assert!(schema["$defs"]["OnFailure"]["allOf"][0]["if"].is_object());
}

#[test]
fn block_scalars_anchors_and_flow_style_are_yaml_as_usual() {
    let source = "
connections:
  hooks: &hooks
    connector: http
    config: {listen: a}
  again: *hooks
adapters:
  a:
    source: {connection: again, operation: http.receive, config: {path: /}}
    routes:
      - name: r
        when: |
          a = 1

            b = 2
          true
        transforms:
          - vrl: >-
              .body.a = 1;
              .body.b = 2
";
    let config = read(source).unwrap_or_else(|p| panic!("{}", lines(&p)));
    let route = &config.adapters[0].routes[0];
    let when = route.when.as_ref().unwrap();
    assert_eq!(when.as_str(), "a = 1\n\n  b = 2\ntrue\n");
    let at = |part: &str| {
        let place = when.place_at(when.find(part).unwrap());
        (place.line, place.column)
    };
    assert_eq!(at("a = 1"), (13, 11));
    assert_eq!(at("= 1"), (13, 13));
    assert_eq!(at("b = 2"), (15, 13));
    assert_eq!(at("true"), (16, 11));
    let consign_config::Transform::Vrl { vrl } = &route.transforms[0] else {
        panic!()
    };
    let place = vrl.place_at(vrl.find(".body.b").unwrap());
    assert_eq!((place.line, place.column), (20, 15));
    let part = when.part(7..when.len());
    let place = part.place_at(part.find("true").unwrap());
    assert_eq!((place.line, place.column), (16, 11));
}
