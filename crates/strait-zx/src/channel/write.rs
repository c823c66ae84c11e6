//! Writing messages to a channel.
//!
//! A write checks the bytes, then takes the handles from their owner, then sends the message. If a step fails, the
//! handles are closed, as on Zircon. The one exception, unknown to Zircon, is a lack of room: then nothing has
//! changed.

use std::io::IoSlice;
use std::mem::{MaybeUninit, offset_of};

use strait::{Outgoing, SendError};

use super::{Chan, wire};
use crate::abi::*;
use crate::object::{self, Object};
use crate::status::{Result, Status};
use crate::table::{Entry, For, Table, Taken, table};
use crate::user::{In, Out};

/// Number of regions up to which all are checked before any status is returned.
const BOUNDED: usize = 16;

/// Number of slices of a message that need no allocation.
const INLINE: usize = 66;

/// The handles of a message, as the caller gives them.
#[derive(Clone, Copy)]
pub(crate) enum HandlesIn<'a> {
    /// Handles of `zx_channel_write`, moved with all rights.
    Plain(In<'a, zx_handle_t>),
    /// Handles with instructions, of `zx_channel_write_etc`.
    Dispositions(Out<'a, zx_handle_disposition_t>),
}

impl HandlesIn<'_> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Plain(handles) => handles.len(),
            Self::Dispositions(dispositions) => dispositions.len(),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Plain(handles) => handles.check(),
            Self::Dispositions(dispositions) => dispositions.check(),
        }
    }

    /// Returns the handle at `index`, with instructions.
    fn get(&self, index: usize) -> zx_handle_disposition_t {
        match self {
            Self::Plain(handles) => zx_handle_disposition_t {
                operation: ZX_HANDLE_OP_MOVE,
                handle: handles.get(index),
                type_: ZX_OBJ_TYPE_NONE,
                rights: ZX_RIGHT_SAME_RIGHTS,
                result: 0,
            },
            Self::Dispositions(dispositions) => dispositions.get(index),
        }
    }

    /// Writes the status of a handle to the handle's disposition.
    fn tell(&self, index: usize, status: Status) {
        if let Self::Dispositions(dispositions) = self {
            dispositions.set(index, zx_handle_disposition_t { result: status.code(), ..dispositions.get(index) });
        }
    }

    /// Closes the handles consumed by a failed write: all except those to be duplicated.
    #[cold]
    pub(crate) fn consume(&self) {
        if self.check().is_err() {
            return;
        }
        for index in 0..self.len() {
            let disposition = self.get(index);
            if disposition.operation != ZX_HANDLE_OP_DUPLICATE {
                let _ = object::close_handle(disposition.handle);
            }
        }
    }

    /// Takes all handles, or none. Each is tried, and the first error is returned.
    fn take(&self, channel: zx_handle_t) -> Result<Vec<Parcel>> {
        let mut parcels = Vec::with_capacity(self.len());
        let mut first = Ok(());
        for index in 0..self.len() {
            match Parcel::take(&self.get(index), channel) {
                Ok(parcel) => parcels.push(parcel),
                Err(status) => {
                    self.tell(index, status);
                    first = first.and(Err(status));
                }
            }
        }
        match first {
            Ok(()) => Ok(parcels),
            Err(status) => {
                parcels.into_iter().for_each(Parcel::close);
                Err(status)
            }
        }
    }
}

/// A handle that is about to be sent in a message.
struct Parcel {
    source: Source,
    rights: zx_rights_t,
}

/// Where the object of the handle comes from.
enum Source {
    /// The handle was taken out of the table, and can be put back.
    Moved(Taken),
    /// A duplicate of the handle.
    Copy(Entry),
}

impl Parcel {
    /// Takes or duplicates one handle for sending over `channel`. On failure, a handle to be moved is closed.
    fn take(disposition: &zx_handle_disposition_t, channel: zx_handle_t) -> Result<Self> {
        let zx_handle_disposition_t { operation, handle, type_, rights, .. } = *disposition;
        let check = |entry: &Entry| {
            entry.need(ZX_RIGHT_TRANSFER)?;
            if handle == channel {
                return Err(Status::NOT_SUPPORTED);
            }
            if type_ != ZX_OBJ_TYPE_NONE && type_ != entry.object.type_() {
                return Err(Status::WRONG_TYPE);
            }
            object::reduce(entry.rights, rights)
        };
        if operation == ZX_HANDLE_OP_DUPLICATE {
            let entry = table().get(handle)?;
            let rights = check(&entry)?;
            entry.need(ZX_RIGHT_DUPLICATE)?;
            let copy = Entry { rights, object: entry.object.another()? };
            return Ok(Self { source: Source::Copy(copy), rights });
        }
        let mut taken = table().take(handle)?;
        let checked = match operation {
            ZX_HANDLE_OP_MOVE => check(taken.entry()),
            _ => Err(Status::INVALID_ARGS),
        };
        match checked {
            Ok(rights) => Ok(Self { source: Source::Moved(taken), rights }),
            Err(status) => {
                object::close(taken);
                Err(status)
            }
        }
    }

    /// Returns the entry of the handle.
    fn entry(&mut self) -> &mut Entry {
        match &mut self.source {
            Source::Moved(taken) => taken.entry(),
            Source::Copy(entry) => entry,
        }
    }

    /// Closes the handle, after the message was sent or lost.
    fn close(self) {
        if let Source::Moved(taken) = self.source {
            object::close(taken);
        }
    }

    /// Gives the handle back to the caller, after the message was not sent for lack of room. `packed` is the result of
    /// packing the handle; `None` if the handle was not packed.
    fn put_back(mut self, packed: Option<strait::Handle>) {
        if let Some(packed) = packed {
            wire::unpack_back(self.entry(), packed);
        }
        if let Source::Moved(taken) = self.source {
            let handle = taken.handle();
            taken.put_back();
            // Looks for the events of an end that could not be told of while the handle was invalid.
            super::look_at(handle);
        }
    }
}

/// Memory for the slices of most messages.
pub(crate) type Scratch<'a> = [MaybeUninit<IoSlice<'a>>; INLINE];

/// Returns uninitialised memory for [`Gathered`].
#[inline]
pub(crate) fn scratch<'a>() -> Scratch<'a> {
    [const { MaybeUninit::uninit() }; INLINE]
}

/// The bytes of a message, as slices of the caller's memory.
pub(crate) struct Gathered<'s, 'a> {
    scratch: &'s mut Scratch<'a>,
    /// Number of slices in `scratch`, from its second place on. The first place is for the number of a call.
    count: usize,
    /// Whether the first place of `scratch` is used.
    front: bool,
    /// All slices, if they do not fit into `scratch`; otherwise empty.
    many: Vec<IoSlice<'a>>,
    /// Number of bytes of all slices.
    total: usize,
}

impl<'s, 'a> Gathered<'s, 'a> {
    /// Appends a slice.
    #[inline]
    fn push(&mut self, bytes: &'a [u8]) {
        self.total += bytes.len();
        if self.many.is_empty() && self.count < INLINE - 1 {
            self.count += 1;
            self.scratch[self.count].write(IoSlice::new(bytes));
        } else {
            self.push_many(bytes);
        }
    }

    #[cold]
    fn push_many(&mut self, bytes: &'a [u8]) {
        if self.many.is_empty() {
            self.many = self.slices().to_vec();
        }
        self.many.push(IoSlice::new(bytes));
    }

    /// Returns all slices.
    #[inline]
    fn slices(&self) -> &[IoSlice<'a>] {
        if !self.many.is_empty() {
            return &self.many;
        }
        let slices = &self.scratch[usize::from(!self.front)..=self.count];
        // SAFETY: `push` and `replace_front` have initialised all slices.
        unsafe { &*(std::ptr::from_ref(slices) as *const [IoSlice<'a>]) }
    }

    pub(crate) fn len(&self) -> usize {
        self.total
    }

    /// Checks the bytes of a message with so many handles, and collects the bytes: one slice, or an array of regions.
    #[inline]
    pub(crate) fn of(scratch: &'s mut Scratch<'a>, bytes: In<'a, u8>, options: u32, handles: usize) -> Result<Self> {
        let mut gathered = Self { scratch, count: 0, front: false, many: Vec::new(), total: 0 };
        if options & ZX_CHANNEL_WRITE_USE_IOVEC != 0 {
            gathered.push_regions(bytes.cast(bytes.len()), handles)?;
            return Ok(gathered);
        }
        check_size(bytes.len(), handles)?;
        gathered.push(bytes.bytes()?);
        Ok(gathered)
    }

    /// Checks and appends an array of regions.
    fn push_regions(&mut self, regions: In<'a, zx_channel_iovec_t>, handles: usize) -> Result<()> {
        let count = regions.len();
        if count > ZX_CHANNEL_MAX_MSG_IOVECS as usize {
            return Err(Status::OUT_OF_RANGE);
        }
        if count > BOUNDED {
            return self.push_many_regions(regions, handles);
        }
        // All regions are read before any is checked. An error in any *reserved* field takes precedence over the size,
        // and the size over a null pointer.
        let (mut reserved, mut total, mut nowhere) = (0, 0, false);
        for region in regions.values()? {
            reserved |= region.reserved;
            total += u64::from(region.capacity);
            match region_bytes(&region) {
                Ok(bytes) => self.push(bytes),
                Err(_) => nowhere = true,
            }
        }
        if reserved != 0 {
            return Err(Status::INVALID_ARGS);
        }
        check_size(usize::try_from(total).unwrap_or(usize::MAX), handles)?;
        if nowhere { Err(Status::INVALID_ARGS) } else { Ok(()) }
    }

    /// Checks and appends many regions one after the other; the first region with an error decides.
    fn push_many_regions(&mut self, regions: In<'a, zx_channel_iovec_t>, handles: usize) -> Result<()> {
        check_size(0, handles)?;
        for region in regions.values()? {
            if region.reserved != 0 {
                return Err(Status::INVALID_ARGS);
            }
            check_size(self.total + region.capacity as usize, handles)?;
            self.push(region_bytes(&region)?);
        }
        Ok(())
    }

    /// Replaces the first bytes of the message by `front`. The message has at least as many bytes.
    #[inline]
    pub(crate) fn replace_front(&mut self, front: &'a [u8]) {
        let mut left = front.len();
        let mut skip = |slice: &mut IoSlice<'a>| {
            let skip = left.min(slice.len());
            slice.advance(skip);
            left -= skip;
        };
        if self.many.is_empty() {
            for place in &mut self.scratch[1..=self.count] {
                // SAFETY: `push` has initialised the place.
                skip(unsafe { place.assume_init_mut() });
            }
            self.scratch[0].write(IoSlice::new(front));
            self.front = true;
        } else {
            self.many.iter_mut().for_each(skip);
            self.many.insert(0, IoSlice::new(front));
        }
    }
}

/// Returns the bytes of a region.
#[inline]
fn region_bytes<'a>(region: &zx_channel_iovec_t) -> Result<&'a [u8]> {
    // SAFETY: the caller's promise for the array includes the memory of each region.
    unsafe { In::<u8>::new(region.buffer.cast(), region.capacity as usize) }.bytes()
}

/// Checks the limits on bytes and handles of a message.
#[inline]
fn check_size(bytes: usize, handles: usize) -> Result<()> {
    if bytes > ZX_CHANNEL_MAX_MSG_BYTES as usize || handles > ZX_CHANNEL_MAX_MSG_HANDLES as usize {
        return Err(Status::OUT_OF_RANGE);
    }
    Ok(())
}

/// `zx_channel_write` and `zx_channel_write_etc`.
#[inline]
pub(crate) fn write(handle: zx_handle_t, options: u32, bytes: In<'_, u8>, handles: HandlesIn<'_>) -> Result<()> {
    if handles.len() == 0 {
        match options {
            0 => return write_plain(handle, bytes),
            ZX_CHANNEL_WRITE_USE_IOVEC => return write_regions(handle, bytes),
            _ => {}
        }
    }
    write_slowly(handle, options, bytes, handles)
}

/// Writes a message of a single slice, without handles.
#[inline]
fn write_plain(handle: zx_handle_t, bytes: In<'_, u8>) -> Result<()> {
    let related = match table().glance(handle, For::Writing) {
        Some(entry) => write_bytes(&entry, bytes)?,
        None => write_counted(handle, bytes)?,
    };
    super::tell_peer(related);
    Ok(())
}

/// Writes a message of one slice without handles, with a counted use of the entry. Returns the koid of the other end.
#[inline(never)]
fn write_counted(handle: zx_handle_t, bytes: In<'_, u8>) -> Result<zx_koid_t> {
    let entry = table().get_kept(handle, Table::get)?;
    let related = write_bytes(&entry, bytes)?;
    entry.warm(For::Writing);
    Ok(related)
}

/// Sends a message of one slice over an end. Returns the koid of the other end.
#[inline(always)]
fn write_bytes(entry: &Entry, bytes: In<'_, u8>) -> Result<zx_koid_t> {
    let chan = entry.object.channel()?;
    entry.need(ZX_RIGHT_WRITE)?;
    check_size(bytes.len(), 0)?;
    chan.strait().try_send(bytes.bytes()?).map_err(|error| Status::from(error.error))?;
    Ok(chan.related)
}

/// Writes a message of regions without handles.
#[inline]
fn write_regions(handle: zx_handle_t, bytes: In<'_, u8>) -> Result<()> {
    let related = match table().glance(handle, For::Writing) {
        Some(entry) => write_regions_to(&entry, bytes)?,
        None => {
            let entry = table().get_kept(handle, Table::get)?;
            let related = write_regions_to(&entry, bytes)?;
            entry.warm(For::Writing);
            related
        }
    };
    super::tell_peer(related);
    Ok(())
}

/// Sends a message of regions over an end. Returns the koid of the other end.
#[inline(never)]
fn write_regions_to(entry: &Entry, bytes: In<'_, u8>) -> Result<zx_koid_t> {
    let chan = entry.object.channel()?;
    entry.need(ZX_RIGHT_WRITE)?;
    let sent = match as_slices(bytes.cast(bytes.len())) {
        Some(slices) => chan.strait().try_send(slices),
        None => send_many_regions(chan, bytes)?,
    };
    sent.map_err(|error| Status::from(error.error))?;
    Ok(chan.related)
}

/// Returns the regions as slices, if all are valid and none is null. Regions have the layout of slices then, so nothing
/// has to be copied.
#[inline]
fn as_slices<'a>(regions: In<'a, zx_channel_iovec_t>) -> Option<&'a [IoSlice<'a>]> {
    const ALIKE: bool = cfg!(all(target_pointer_width = "64", target_endian = "little"))
        && size_of::<zx_channel_iovec_t>() == size_of::<IoSlice>()
        && offset_of!(zx_channel_iovec_t, buffer) == 0
        && offset_of!(zx_channel_iovec_t, capacity) == size_of::<usize>();
    // This loop has no branches; the slow path finds the error.
    let (mut wrong, mut total) = (false, 0);
    for region in regions.values().ok()? {
        total += u64::from(region.capacity);
        wrong |= region.reserved != 0 || region.buffer.is_null();
    }
    if !ALIKE || wrong || regions.len() > ZX_CHANNEL_MAX_MSG_IOVECS as usize || total > ZX_CHANNEL_MAX_MSG_BYTES.into()
    {
        return None;
    }
    // SAFETY: with *reserved* zero behind it, a capacity is a length, and `IoSlice` has the layout of `iovec`: a
    // pointer and a length. No pointer is null, and the caller's promise for the array includes the memory of each
    // region.
    unsafe { regions.as_slice_of() }
}

/// Sends regions after checking each region. Some of them are invalid or null.
#[cold]
fn send_many_regions(chan: &Chan, bytes: In<'_, u8>) -> Result<std::result::Result<(), SendError>> {
    let mut scratch = scratch();
    let gathered = Gathered::of(&mut scratch, bytes, ZX_CHANNEL_WRITE_USE_IOVEC, 0)?;
    Ok(chan.strait().try_send(gathered.slices()))
}

/// Writes a message with handles, or with unknown options.
#[inline(never)]
fn write_slowly(handle: zx_handle_t, options: u32, bytes: In<'_, u8>, handles: HandlesIn<'_>) -> Result<()> {
    let mut scratch = scratch();
    let gathered = check_write(&mut scratch, handle, options, bytes, handles).inspect_err(|_| handles.consume())?;
    send(handle, &gathered, handles)
}

/// Checks everything that is checked before the handles, and collects the bytes.
fn check_write<'s, 'a>(
    scratch: &'s mut Scratch<'a>,
    handle: zx_handle_t,
    options: u32,
    bytes: In<'a, u8>,
    handles: HandlesIn<'_>,
) -> Result<Gathered<'s, 'a>> {
    if options & !ZX_CHANNEL_WRITE_USE_IOVEC != 0 {
        return Err(Status::INVALID_ARGS);
    }
    let entry = table().get_kept(handle, Table::get)?;
    entry.object.channel()?;
    entry.need(ZX_RIGHT_WRITE)?;
    drop(entry);
    let gathered = Gathered::of(scratch, bytes, options, handles.len())?;
    handles.check()?;
    Ok(gathered)
}

/// Gives the handles of a message that was not sent back to the caller. `packed` are the results of packing the first
/// parcels; the other parcels were not packed.
fn put_back(parcels: Vec<Parcel>, packed: Vec<strait::Handle>) {
    let mut packed = packed.into_iter();
    parcels.into_iter().for_each(|parcel| parcel.put_back(packed.next()));
}

/// Takes the handles, and sends the message.
pub(crate) fn send(handle: zx_handle_t, gathered: &Gathered<'_, '_>, handles: HandlesIn<'_>) -> Result<()> {
    if handles.len() == 0 {
        let send = |entry: &Entry| -> Result<zx_koid_t> {
            let chan = entry.object.channel()?;
            chan.strait().try_send(gathered.slices()).map_err(|error| Status::from(error.error))?;
            Ok(chan.related)
        };
        let related = match table().glance(handle, For::Writing) {
            Some(entry) => send(&entry)?,
            None => {
                let entry = table().get_kept(handle, Table::get)?;
                let related = send(&entry)?;
                entry.warm(For::Writing);
                related
            }
        };
        super::tell_peer(related);
        return Ok(());
    }
    loop {
        match send_handles(handle, gathered, handles) {
            // Another thread has taken the end away to send it, and puts the end back if that fails.
            None => table().get_kept(handle, Table::get).map(drop).inspect_err(|_| handles.consume())?,
            Some(sent) => return sent,
        }
    }
}

/// Takes the handles, and sends the message. Returns `None` if the end is not in the table at the moment; the handles
/// are in the table again then.
fn send_handles(handle: zx_handle_t, gathered: &Gathered<'_, '_>, handles: HandlesIn<'_>) -> Option<Result<()>> {
    let mut parcels = match handles.take(handle) {
        Ok(parcels) => parcels,
        Err(status) => return Some(Err(status)),
    };
    let mut records = Vec::with_capacity(parcels.len() * wire::RECORD);
    let mut packed = Vec::with_capacity(parcels.len());
    for parcel in &mut parcels {
        let (rights, moves) = (parcel.rights, matches!(parcel.source, Source::Moved(_)));
        match wire::pack(parcel.entry(), rights, moves) {
            Ok((handle, record)) => {
                record.encode(&mut records);
                packed.push(handle);
            }
            Err(Status::SHOULD_WAIT) => {
                put_back(parcels, packed);
                return Some(Err(Status::SHOULD_WAIT));
            }
            Err(status) => {
                parcels.into_iter().for_each(Parcel::close);
                return Some(Err(status));
            }
        }
    }
    let mut slices = gathered.slices().to_vec();
    slices.push(IoSlice::new(&records));
    let Ok(entry) = table().get(handle) else {
        put_back(parcels, packed);
        return None;
    };
    let sent = match &entry.object {
        Object::Channel(chan) => chan
            .strait()
            .try_send(Outgoing::vectored(&slices).handles(packed))
            .map(|()| chan.related)
            .map_err(|error| (Status::from(error.error), error.handles)),
        _ => Err((Status::BAD_HANDLE, packed)),
    };
    // The handles are put back or closed without a use.
    drop(entry);
    Some(match sent {
        Ok(related) => {
            parcels.into_iter().for_each(Parcel::close);
            super::tell_peer(related);
            Ok(())
        }
        Err((Status::SHOULD_WAIT, packed)) => {
            put_back(parcels, packed);
            Err(Status::SHOULD_WAIT)
        }
        Err((status, packed)) => {
            parcels.into_iter().for_each(Parcel::close);
            drop(packed);
            Err(status)
        }
    })
}
