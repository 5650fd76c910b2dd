//! Putting a plugin together, and its parts with their types erased.

use crate::functions::FunctionDef;
use crate::source_state::SourceState;
use crate::{
    Batch, Config, ConnectionContext, Connector, ErrorHandler, Failure, Inspection, Outcome,
    Processor, Sink, Source, SourceContext, Transform, WriteContext,
};
use consign_manifest::{
    ConnectorManifest, MANIFEST_FORMAT, Manifest, OperationDeclaration, OperationManifest,
    ResolveRequest, SourceAnswer,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::any::Any;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
pub(crate) type AnyArc = Arc<dyn Any + Send + Sync>;

/// A plugin: its name, version and what it contains.
pub struct Plugin {
    name: String,
    version: String,
    connectors: Vec<ConnectorDef>,
    functions: Vec<FunctionDef>,
}

impl Plugin {
    /// An empty plugin. `name` is `snake_case`; `version` is `env!("CARGO_PKG_VERSION")`.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            connectors: Vec::new(),
            functions: Vec::new(),
        }
    }

    /// Adds a connector; `build` adds its operations.
    #[must_use]
    pub fn connector<C: Connector>(
        mut self,
        build: impl FnOnce(ConnectorBuilder<C>) -> ConnectorBuilder<C>,
    ) -> Self {
        let (config_schema, description) = schema_of::<C::Config>();
        let builder = build(ConnectorBuilder {
            def: ConnectorDef {
                manifest: ConnectorManifest {
                    name: C::NAME.to_owned(),
                    title: C::TITLE.to_owned(),
                    description,
                    config_schema,
                    operations: Vec::new(),
                    example: String::new(),
                },
                connect: connect::<C>,
                operations: Vec::new(),
            },
            connector: PhantomData,
        });
        self.connectors.push(builder.def);
        self
    }

    /// Adds a processor.
    #[must_use]
    pub fn processor<P: Processor>(mut self) -> Self {
        self.functions.push(FunctionDef::processor::<P>());
        self
    }

    /// Adds a transform.
    #[must_use]
    pub fn transform<T: Transform>(mut self) -> Self {
        self.functions.push(FunctionDef::transform::<T>());
        self
    }

    /// Adds an error handler.
    #[must_use]
    pub fn error_handler<E: ErrorHandler>(mut self) -> Self {
        self.functions.push(FunctionDef::error_handler::<E>());
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn connector_def(&self, name: &str) -> Option<&ConnectorDef> {
        self.connectors.iter().find(|c| c.manifest.name == name)
    }

    pub(crate) fn operation_def(&self, connector: &str, id: &str) -> Option<&OperationDef> {
        let connector = self.connector_def(connector)?;
        connector.operations.iter().find(|o| o.manifest.id == id)
    }

    pub(crate) fn function_def(&self, kind: &str, name: &str) -> Option<&FunctionDef> {
        self.functions.iter().find(|f| f.is(kind, name))
    }

    /// Answers a [`ResolveRequest`], given as JSON.
    pub(crate) fn resolve(&self, request: &[u8]) -> Result<Value, Failure> {
        let request: ResolveRequest = serde_json::from_slice(request)
            .map_err(|e| Failure::other(("bad_request", e.to_string())))?;
        let operations = self.connectors.iter().flat_map(|c| &c.operations);
        let operation = operations
            .into_iter()
            .find(|o| o.manifest.id == request.operation)
            .ok_or_else(|| {
                let message = format!("the plugin has no operation {}", request.operation);
                Failure::config(("no_such_operation", message))
            })?;
        (operation.resolve)(request.connection, request.function)
    }

    /// The plugin's manifest, as the host reads it.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        Manifest {
            format: MANIFEST_FORMAT,
            name: self.name.clone(),
            version: self.version.clone(),
            connectors: self
                .connectors
                .iter()
                .map(|c| {
                    let mut manifest = c.manifest.clone();
                    manifest.operations = c.operations.iter().map(|o| o.manifest.clone()).collect();
                    manifest
                })
                .collect(),
            functions: self.functions.iter().map(|f| f.manifest.clone()).collect(),
        }
    }
}

/// Adds operations to a connector.
pub struct ConnectorBuilder<C> {
    def: ConnectorDef,
    connector: PhantomData<fn() -> C>,
}

impl<C: Connector> ConnectorBuilder<C> {
    /// Adds an operation that writes.
    #[must_use]
    pub fn sink<S: Sink<Connector = C>>(mut self) -> Self {
        let (config_schema, description) = schema_of::<S::Config>();
        self.def.operations.push(OperationDef {
            manifest: OperationManifest {
                id: S::OPERATION.to_owned(),
                title: S::TITLE.to_owned(),
                description,
                config_schema,
                declaration: OperationDeclaration::Sink(S::declaration()),
            },
            resolve: resolve_sink::<S>,
            open: Open::Sink(open_sink::<S>),
        });
        self
    }

    /// Adds an operation that reads.
    #[must_use]
    pub fn source<S: Source<Connector = C>>(mut self) -> Self {
        let (config_schema, description) = schema_of::<S::Config>();
        self.def.operations.push(OperationDef {
            manifest: OperationManifest {
                id: S::OPERATION.to_owned(),
                title: S::TITLE.to_owned(),
                description,
                config_schema,
                declaration: OperationDeclaration::Source(S::declaration()),
            },
            resolve: resolve_source::<S>,
            open: Open::Source(run_source::<S>),
        });
        self
    }

    /// A complete host configuration (YAML) that shows the connector; checked by the kit.
    #[must_use]
    pub fn example(mut self, yaml: impl Into<String>) -> Self {
        self.def.manifest.example = yaml.into();
        self
    }
}

pub(crate) struct ConnectorDef {
    pub manifest: ConnectorManifest,
    pub connect: fn(Value, ConnectionContext) -> Opening<Arc<dyn AnyConnection>>,
    pub operations: Vec<OperationDef>,
}

pub(crate) struct OperationDef {
    pub manifest: OperationManifest,
    pub resolve: fn(Value, Value) -> Result<Value, Failure>,
    pub open: Open,
}

/// What becomes a `T`, or fails.
type Opening<T> = BoxFuture<'static, Result<T, Failure>>;
type OpenSink = fn(AnyArc, Value, ConnectionContext) -> Opening<Arc<dyn AnySink>>;
type RunSource = fn(
    AnyArc,
    Value,
    ConnectionContext,
    Option<Vec<u8>>,
    Arc<SourceState>,
) -> Result<Opening<()>, Failure>;

pub(crate) enum Open {
    Sink(OpenSink),
    Source(RunSource),
}

pub(crate) trait AnyConnection: Send + Sync {
    fn probe(&self) -> BoxFuture<'_, Result<(), Failure>>;
    fn close(&self) -> BoxFuture<'_, ()>;
    fn any(&self) -> AnyArc;
}

struct Connection<C>(Arc<C>);

impl<C: Connector> AnyConnection for Connection<C> {
    fn probe(&self) -> BoxFuture<'_, Result<(), Failure>> {
        self.0.probe()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.0.close()
    }

    fn any(&self) -> AnyArc {
        Arc::clone(&self.0) as AnyArc
    }
}

pub(crate) trait AnySink: Send + Sync {
    fn write<'a>(&'a self, batch: &'a Batch, cx: &'a WriteContext) -> BoxFuture<'a, Vec<Outcome>>;
    fn inspect(&self) -> BoxFuture<'_, Inspection>;
}

impl<S: Sink> AnySink for S {
    fn write<'a>(&'a self, batch: &'a Batch, cx: &'a WriteContext) -> BoxFuture<'a, Vec<Outcome>> {
        Sink::write(self, batch, cx)
    }

    fn inspect(&self) -> BoxFuture<'_, Inspection> {
        Sink::inspect(self)
    }
}

fn connect<C: Connector>(config: Value, cx: ConnectionContext) -> Opening<Arc<dyn AnyConnection>> {
    Box::pin(async move {
        let connection = C::connect(parse(config, "connection")?, &cx).await?;
        Ok(Arc::new(Connection(Arc::new(connection))) as Arc<dyn AnyConnection>)
    })
}

fn open_sink<S: Sink>(
    connection: AnyArc,
    config: Value,
    cx: ConnectionContext,
) -> Opening<Arc<dyn AnySink>> {
    Box::pin(async move {
        let connection = downcast::<S::Connector>(connection, S::OPERATION)?;
        let sink = S::open(connection, parse(config, S::OPERATION)?, &cx).await?;
        Ok(Arc::new(sink) as Arc<dyn AnySink>)
    })
}

fn run_source<S: Source>(
    connection: AnyArc,
    config: Value,
    cx: ConnectionContext,
    position: Option<Vec<u8>>,
    state: Arc<SourceState>,
) -> Result<Opening<()>, Failure> {
    let connection = downcast::<S::Connector>(connection, S::OPERATION)?;
    let config = parse(config, S::OPERATION)?;
    Ok(S::run(
        connection,
        config,
        SourceContext::new(cx, position, state),
    ))
}

fn resolve_sink<S: Sink>(connection: Value, config: Value) -> Result<Value, Failure> {
    let connection = parse(connection, S::Connector::NAME)?;
    let resolved = S::resolve(&connection, &parse(config, S::OPERATION)?);
    serde_json::to_value(resolved).map_err(|e| Failure::other(("json", e.to_string())))
}

fn resolve_source<S: Source>(connection: Value, config: Value) -> Result<Value, Failure> {
    let connection = parse(connection, S::Connector::NAME)?;
    let config = parse(config, S::OPERATION)?;
    let answer = SourceAnswer {
        resolved: S::resolve(&connection, &config),
        claims: S::claims(&connection, &config),
    };
    serde_json::to_value(answer).map_err(|e| Failure::other(("json", e.to_string())))
}

fn downcast<C: Connector>(connection: AnyArc, operation: &str) -> Result<Arc<C>, Failure> {
    connection.downcast().map_err(|_| {
        Failure::config((
            "wrong_connection",
            format!("{operation} needs a connection of connector {}", C::NAME),
        ))
    })
}

pub(crate) fn parse<T: DeserializeOwned>(config: Value, of: &str) -> Result<T, Failure> {
    serde_json::from_value(config)
        .map_err(|e| Failure::config(("config", format!("config of {of}: {e}"))))
}

/// The JSON schema of a config type, and its doc comment.
pub(crate) fn schema_of<T: Config>() -> (Value, String) {
    let schema = schemars::schema_for!(T).to_value();
    let description = schema
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    (schema, description)
}

/// Exports a plugin: one line at the end of the crate, `export_plugin!(plugin);`, where `plugin`
/// is a function `fn() -> Plugin`.
///
/// The host finds a plugin by the package's name without `consign-plugin-`. One whose connectors
/// or functions have other names lists them all, separated by blanks:
/// `export_plugin!(plugin, provides = "s3 sqs sns");`
#[macro_export]
macro_rules! export_plugin {
    ($plugin:path) => {
        $crate::export_plugin!($plugin, provides = "");
    };
    ($plugin:path, provides = $provides:literal) => {
        const _: () = {
            extern "C" fn root() -> $crate::__private::Root {
                $crate::__private::root($plugin)
            }

            // The name holds the crate's, so that several plugins fit into one binary.
            #[unsafe(export_name = concat!("consign_plugin_root_", env!("CARGO_CRATE_NAME")))]
            pub static ROOT: $crate::__private::Header = $crate::__private::header(root);

            #[used]
            #[unsafe(link_section = ".note.consign")]
            static NOTE: $crate::__private::NoteRecord = $crate::__private::NoteRecord::new(&[
                $crate::__private::NOTE_HEAD,
                $crate::__private::NOTE_ABI,
                $crate::__private::NOTE_PANIC,
                concat!(
                    "\npackage=",
                    env!("CARGO_PKG_NAME"),
                    "\nversion=",
                    env!("CARGO_PKG_VERSION"),
                    "\nroot=consign_plugin_root_",
                    env!("CARGO_CRATE_NAME"),
                    "\nprovides=",
                    $provides,
                    "\n"
                ),
            ]);
        };
    };
}
