//! The examples of the project's documents, compiled and run as documentation tests; and tests of the links between the
//! documents. The crate has no code of its own.

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/async.md")]
struct GuidesAsync;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/calls.md")]
struct GuidesCalls;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/data-pipes.md")]
struct GuidesDataPipes;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/fan-out.md")]
struct GuidesFanOut;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/from-grpc.md")]
struct GuidesFromGrpc;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/from-multiprocessing.md")]
struct GuidesFromMultiprocessing;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/from-pipes.md")]
struct GuidesFromPipes;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/from-sockets.md")]
struct GuidesFromSockets;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/from-zeromq.md")]
struct GuidesFromZeromq;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/grpc-service.md")]
struct GuidesGrpcService;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/http-service.md")]
struct GuidesHttpService;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/large-frames.md")]
struct GuidesLargeFrames;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/layers.md")]
struct GuidesLayers;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/meeting.md")]
struct GuidesMeeting;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/messages.md")]
struct GuidesMessages;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/fidl.md")]
struct GuidesFidl;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/plugin-host.md")]
struct GuidesPluginHost;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/regions.md")]
struct GuidesRegions;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/serving.md")]
struct GuidesServing;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/tokio-service.md")]
struct GuidesTokioService;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/typed-messages.md")]
struct GuidesTypedMessages;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/wait-sets.md")]
struct GuidesWaitSets;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/messagepack.md")]
struct ReferenceMessagepack;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/options.md")]
struct ReferenceOptions;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/start/hello-rust.md")]
struct StartHelloRust;
