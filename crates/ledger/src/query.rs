//! Builds the WHERE of a filtered list.

use rusqlite::types::Value;

/// A page's length where the caller names none, so that a list never grows with the file.
pub(crate) const DEFAULT_LIMIT: u32 = 1_000;

/// Conditions, all of which hold, with their parameters.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    sql: Vec<String>,
    pub(crate) params: Vec<Value>,
}

impl Conditions {
    /// Adds `sql`, whose `?` stands for `value`, where there is one.
    pub(crate) fn add(&mut self, sql: &str, value: Option<impl Into<Value>>) -> &mut Self {
        if let Some(value) = value {
            self.sql.push(sql.to_owned());
            self.params.push(value.into());
        }
        self
    }

    /// Adds `column IN (…)` where there is anything to choose from.
    pub(crate) fn any<V: Into<Value>>(
        &mut self,
        column: &str,
        values: impl IntoIterator<Item = V>,
    ) -> &mut Self {
        let before = self.params.len();
        self.params.extend(values.into_iter().map(Into::into));
        let count = self.params.len() - before;
        if count > 0 {
            self.sql
                .push(format!("{column} IN ({})", vec!["?"; count].join(", ")));
        }
        self
    }

    /// Adds a search for `text` in any of `columns`: taken literally, ASCII letters in either case.
    pub(crate) fn text(&mut self, columns: &[&str], text: Option<&str>) -> &mut Self {
        if let Some(text) = text.filter(|t| !t.is_empty()) {
            // Not LIKE, whose patterns have a longest length.
            let tests: Vec<String> = columns
                .iter()
                .map(|c| format!("instr(lower({c}), lower(?)) > 0"))
                .collect();
            self.sql.push(format!("({})", tests.join(" OR ")));
            self.params
                .extend(columns.iter().map(|_| Value::Text(text.to_owned())));
        }
        self
    }

    /// ` WHERE …`, or nothing.
    pub(crate) fn sql(&self) -> String {
        if self.sql.is_empty() {
            String::new()
        } else {
            format!(" WHERE {}", self.sql.join(" AND "))
        }
    }
}

/// The limit to use for the one that was asked for.
pub(crate) fn limit(asked: u32) -> i64 {
    i64::from(if asked == 0 { DEFAULT_LIMIT } else { asked })
}

/// A count as SQLite keeps it. Our counts stay far below the bound.
pub(crate) fn integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
