//! Streams as connections of tonic's server.

use strait::Peer;
use tonic014::transport::server::Connected;

use crate::Stream;

/// The description of a connection in the extensions of each request of tonic that arrives over a [`Stream`]. With the
/// feature `tonic014`, which is off by default.
///
/// ```
/// # use tonic014 as tonic;
/// use strait_tokio::ConnectInfo;
///
/// /// Returns the process that made the request.
/// fn client(request: &tonic::Request<()>) -> Option<u32> {
///     request.extensions().get::<ConnectInfo>()?.peer?.pid
/// }
/// # assert_eq!(client(&tonic::Request::new(())), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectInfo {
    /// The identity of the client, as reported by the kernel. A stream from
    /// [`Listener::accept_stream`](crate::Listener::accept_stream) has one; see [`Stream::peer`].
    pub peer: Option<Peer>,
}

/// Streams are what `serve_with_incoming` of tonic 0.14 accepts, with the feature `tonic014`.
impl Connected for Stream {
    type ConnectInfo = ConnectInfo;

    fn connect_info(&self) -> ConnectInfo {
        ConnectInfo { peer: self.peer() }
    }
}
