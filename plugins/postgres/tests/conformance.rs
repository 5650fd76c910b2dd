//! Conformance of the PostgreSQL connector against a real server. Rows are counted by psql, which
//! shares no code with the connector's driver.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod server;

use async_trait::async_trait;
use consign_testkit::conformance::{
    self, Access, Destination, Effect, Place, Product, Setup, Subjects,
};
use server::Server;
use std::process::ExitCode;

fn main() -> ExitCode {
    conformance::main("postgres", || async {
        let subjects = Subjects::new();
        match Server::find() {
            Some(server) => [Case::Keyed, Case::WithoutKey, Case::Upsert, Case::Statement]
                .into_iter()
                .fold(subjects, |subjects, case| {
                    let server = server.clone();
                    subjects.destination(Table { server, case })
                }),
            None => subjects.skipped("postgresql"),
        }
    })
}

/// How rows go in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Keyed,
    WithoutKey,
    Upsert,
    Statement,
}

struct Table {
    server: Server,
    case: Case,
}

#[async_trait]
impl Destination for Table {
    fn operation(&self) -> &'static str {
        "postgres.write"
    }

    fn case(&self) -> &'static str {
        match self.case {
            Case::Keyed => "keyed",
            Case::WithoutKey => "without_key",
            Case::Upsert => "upsert",
            Case::Statement => "statement",
        }
    }

    fn product(&self) -> Product {
        Product::real("PostgreSQL", &self.server.version)
    }

    fn access(&self) -> Access {
        Access::Network {
            server: self.server.address(),
            applies: vec!["COMMIT"],
            shows_key: true,
        }
    }

    fn without_key(&self) -> bool {
        self.case == Case::WithoutKey
    }

    async fn prepare(&self, place: &Place) -> Setup {
        let tag = &place.tag;
        let unique = match self.case {
            Case::Keyed => ", UNIQUE (key)",
            Case::Upsert => ", UNIQUE (id)",
            _ => "",
        };
        self.server
            .sql(&format!("CREATE TABLE {tag} (id text, key text{unique})"));
        let columns = r#"columns: { id: "{{ .body.id }}" }"#;
        let config = match self.case {
            Case::Keyed => format!("{{ table: {tag}, {columns}, write_key_column: key }}"),
            Case::WithoutKey => format!("{{ table: {tag}, {columns} }}"),
            Case::Upsert => format!(
                "{{ mode: upsert, table: {tag}, {columns}, conflict_columns: [id], write_key_column: key }}"
            ),
            Case::Statement => format!(
                r#"{{ mode: statement, statement: "INSERT INTO {tag} VALUES ($1, $2)", parameters: ["{{{{ .body.id }}}}"], write_key_parameter: true }}"#
            ),
        };
        let address = place.address.unwrap();
        Setup {
            connection: format!(
                "{{ connector: postgres, config: {{ servers: [\"{address}\"], database: postgres, auth: {{ username: postgres, password: none }}, timeouts: {{ connect: 3s, request: 3s }} }} }}"
            ),
            config,
            order: "strict".into(),
        }
    }

    async fn effects(&self, place: &Place) -> Vec<Effect> {
        let (server, tag) = (self.server.clone(), place.tag.clone());
        let rows =
            tokio::task::spawn_blocking(move || server.sql(&format!("SELECT id, key FROM {tag}")));
        let rows = rows.await.unwrap();
        let rows = rows.lines().map(|line| line.split_once('|').unwrap());
        rows.map(|(id, key)| Effect {
            id: id.to_owned(),
            key: (!key.is_empty()).then(|| key.to_owned()),
        })
        .collect()
    }

    async fn clean_up(&self, place: &Place) {
        self.server.sql(&format!("DROP TABLE {}", place.tag));
    }
}
