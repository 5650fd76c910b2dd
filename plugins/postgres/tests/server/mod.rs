//! The PostgreSQL server of the tests, and psql, which shares no code with the connector.

use std::net::SocketAddr;
use std::process::Command;

/// A server, and how psql gets there.
#[derive(Clone)]
pub struct Server {
    url: String,
    pub version: String,
}

impl Server {
    /// The shared server; `None`, loudly, where there is none.
    pub fn find() -> Option<Self> {
        consign_testkit::service("postgresql").map(|service| Self::of(&service))
    }

    pub fn of(service: &consign_testkit::Service) -> Self {
        Self {
            url: service.url.clone(),
            version: service.version.clone(),
        }
    }

    pub fn address(&self) -> SocketAddr {
        let rest = self.url.split_once('@').unwrap().1;
        rest.split('/').next().unwrap().parse().unwrap()
    }

    /// Runs SQL through psql; rows as lines, columns with `|` between them.
    pub fn sql(&self, sql: &str) -> String {
        self.try_sql(sql)
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    pub fn try_sql(&self, sql: &str) -> Result<String, String> {
        let output = Command::new("psql")
            .args(["--no-psqlrc", "--no-align", "--tuples-only", "--quiet"])
            .args(["--set", "ON_ERROR_STOP=1", "--command", sql, &self.url])
            .output()
            .expect("psql runs");
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let text = String::from_utf8(output.stdout).unwrap();
        Ok(text.trim_end_matches('\n').to_owned())
    }
}
