//! Writing.
//!
//! First the bytes are looked at, then the handles are taken from their owner, then the message is sent. Whatever fails, the
//! handles are gone, as Zircon has it; with one exception, which Zircon does not know: if there is no room, nothing has happened.

use std::io::IoSlice;
use std::mem::{MaybeUninit, offset_of};

use strait::{Outgoing, SendError};

use super::{Chan, wire};
use crate::abi::*;
use crate::object::{self, Object};
use crate::status::{Result, Status};
use crate::table::{Entry, For, Taken, table};
use crate::user::{In, Out};

/// Regions that are looked at as one.
const BOUNDED: usize = 16;

/// Slices of a message that need no allocation.
const INLINE: usize = 66;

/// The handles of a message, as the caller names them.
#[derive(Clone, Copy)]
pub(crate) enum HandlesIn<'a> {
    Plain(In<'a, zx_handle_t>),
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

    /// Says what is wrong with one.
    fn tell(&self, index: usize, status: Status) {
        if let Self::Dispositions(dispositions) = self {
            dispositions.set(index, zx_handle_disposition_t { result: status.code(), ..dispositions.get(index) });
        }
    }

    /// Closes those that a failed write takes: all that are not to be duplicated.
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

    /// Takes them, all or none; each is tried, and the first error counts.
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

/// A handle on its way into a message.
struct Parcel {
    source: Source,
    rights: zx_rights_t,
}

enum Source {
    /// It has left the table, for now.
    Moved(Taken),
    /// One of the same object.
    Copy(Entry),
}

impl Parcel {
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

    fn entry(&mut self) -> &mut Entry {
        match &mut self.source {
            Source::Moved(taken) => taken.entry(),
            Source::Copy(entry) => entry,
        }
    }

    /// It is sent, or lost.
    fn close(self) {
        if let Source::Moved(taken) = self.source {
            object::close(taken);
        }
    }

    /// It is the caller's as before.
    fn put_back(mut self, handle: strait::Handle) {
        wire::unpack_back(self.entry(), handle);
        if let Source::Moved(taken) = self.source {
            taken.put_back();
        }
    }
}

/// Memory for the slices of most messages.
pub(crate) type Scratch<'a> = [MaybeUninit<IoSlice<'a>>; INLINE];

/// Memory for [`Gathered`]; nothing is written to it.
#[inline]
pub(crate) fn scratch<'a>() -> Scratch<'a> {
    [const { MaybeUninit::uninit() }; INLINE]
}

/// The bytes of a message, as slices of the caller's memory.
pub(crate) struct Gathered<'s, 'a> {
    scratch: &'s mut Scratch<'a>,
    /// Those in `scratch`, from its second place on: the first is for what a call puts before the rest.
    count: usize,
    /// Whether the first place is used.
    front: bool,
    /// All of them, if they are more.
    many: Vec<IoSlice<'a>>,
    total: usize,
}

impl<'s, 'a> Gathered<'s, 'a> {
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

    #[inline]
    fn slices(&self) -> &[IoSlice<'a>] {
        if !self.many.is_empty() {
            return &self.many;
        }
        let slices = &self.scratch[usize::from(!self.front)..=self.count];
        // SAFETY: `push` and `replace_front` have written these places.
        unsafe { &*(std::ptr::from_ref(slices) as *const [IoSlice<'a>]) }
    }

    pub(crate) fn len(&self) -> usize {
        self.total
    }

    /// One slice of bytes, or an array of regions.
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

    fn push_regions(&mut self, regions: In<'a, zx_channel_iovec_t>, handles: usize) -> Result<()> {
        let count = regions.len();
        if count > ZX_CHANNEL_MAX_MSG_IOVECS as usize {
            return Err(Status::OUT_OF_RANGE);
        }
        if count > BOUNDED {
            return self.push_many_regions(regions, handles);
        }
        // All of them are looked at before any: what is wrong anywhere with *reserved* counts before any size does, and a size
        // before a null pointer.
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

    /// One after the other: the first with anything wrong counts.
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

    /// Replaces the first bytes. There are as many.
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
                // SAFETY: `push` has written it.
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

/// What a region says is there.
#[inline]
fn region_bytes<'a>(region: &zx_channel_iovec_t) -> Result<&'a [u8]> {
    // SAFETY: what a region says is part of what the caller has promised of the array.
    unsafe { In::<u8>::new(region.buffer.cast(), region.capacity as usize) }.bytes()
}

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

#[inline]
fn write_plain(handle: zx_handle_t, bytes: In<'_, u8>) -> Result<()> {
    let related = match table().glance(handle, For::Writing) {
        Some(entry) => write_bytes(&entry, bytes)?,
        None => write_counted(handle, bytes)?,
    };
    super::tell_peer(related);
    Ok(())
}

#[inline(never)]
fn write_counted(handle: zx_handle_t, bytes: In<'_, u8>) -> Result<zx_koid_t> {
    let entry = table().get(handle)?;
    let related = write_bytes(&entry, bytes)?;
    entry.warm(For::Writing);
    Ok(related)
}

/// Writes to an end; the number of the other.
#[inline(always)]
fn write_bytes(entry: &Entry, bytes: In<'_, u8>) -> Result<zx_koid_t> {
    let chan = entry.object.channel()?;
    entry.need(ZX_RIGHT_WRITE)?;
    check_size(bytes.len(), 0)?;
    chan.strait().try_send(bytes.bytes()?).map_err(|error| Status::from(error.error))?;
    Ok(chan.related)
}

/// The same with regions.
#[inline]
fn write_regions(handle: zx_handle_t, bytes: In<'_, u8>) -> Result<()> {
    let related = match table().glance(handle, For::Writing) {
        Some(entry) => write_regions_to(&entry, bytes)?,
        None => {
            let entry = table().get(handle)?;
            let related = write_regions_to(&entry, bytes)?;
            entry.warm(For::Writing);
            related
        }
    };
    super::tell_peer(related);
    Ok(())
}

/// Writes regions to an end; the number of the other.
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

/// Regions as slices, if nothing is wrong with any of them and all are somewhere: then they are laid out as slices are, and
/// nothing has to be put together.
#[inline]
fn as_slices<'a>(regions: In<'a, zx_channel_iovec_t>) -> Option<&'a [IoSlice<'a>]> {
    const ALIKE: bool = cfg!(all(target_pointer_width = "64", target_endian = "little"))
        && size_of::<zx_channel_iovec_t>() == size_of::<IoSlice>()
        && offset_of!(zx_channel_iovec_t, buffer) == 0
        && offset_of!(zx_channel_iovec_t, capacity) == size_of::<usize>();
    // No branches: what is wrong is looked for later.
    let (mut wrong, mut total) = (false, 0);
    for region in regions.values().ok()? {
        total += u64::from(region.capacity);
        wrong |= region.reserved != 0 || region.buffer.is_null();
    }
    if !ALIKE || wrong || regions.len() > ZX_CHANNEL_MAX_MSG_IOVECS as usize || total > ZX_CHANNEL_MAX_MSG_BYTES.into()
    {
        return None;
    }
    // SAFETY: with *reserved* zero behind it a capacity is a length, and `IoSlice` has the layout of `iovec`: a pointer and a length. None is null; that there
    // is as much as each says is part of what the caller has promised of the array.
    unsafe { regions.as_slice_of() }
}

/// What there is to regions that are not as they should be, or nowhere.
#[cold]
fn send_many_regions(chan: &Chan, bytes: In<'_, u8>) -> Result<std::result::Result<(), SendError>> {
    let mut scratch = scratch();
    let gathered = Gathered::of(&mut scratch, bytes, ZX_CHANNEL_WRITE_USE_IOVEC, 0)?;
    Ok(chan.strait().try_send(gathered.slices()))
}

#[inline(never)]
fn write_slowly(handle: zx_handle_t, options: u32, bytes: In<'_, u8>, handles: HandlesIn<'_>) -> Result<()> {
    let mut scratch = scratch();
    let gathered = check_write(&mut scratch, handle, options, bytes, handles).inspect_err(|_| handles.consume())?;
    send(handle, &gathered, handles)
}

/// What is looked at before the handles are.
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
    let entry = table().get(handle)?;
    entry.object.channel()?;
    entry.need(ZX_RIGHT_WRITE)?;
    drop(entry);
    let gathered = Gathered::of(scratch, bytes, options, handles.len())?;
    handles.check()?;
    Ok(gathered)
}

/// Takes the handles, and sends all that belongs to a message.
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
                let entry = table().get(handle)?;
                let related = send(&entry)?;
                entry.warm(For::Writing);
                related
            }
        };
        super::tell_peer(related);
        return Ok(());
    }
    let mut parcels = handles.take(handle)?;
    let mut records = Vec::with_capacity(parcels.len() * wire::RECORD);
    let mut packed = Vec::with_capacity(parcels.len());
    for parcel in &mut parcels {
        let rights = parcel.rights;
        match wire::pack(parcel.entry(), rights) {
            Ok((handle, record)) => {
                record.encode(&mut records);
                packed.push(handle);
            }
            Err(status) => {
                parcels.into_iter().for_each(Parcel::close);
                return Err(status);
            }
        }
    }
    let mut slices = gathered.slices().to_vec();
    slices.push(IoSlice::new(&records));
    // Meanwhile the end may have been sent away, by this very call even.
    let sent = match table().get(handle) {
        Ok(entry) => match &entry.object {
            Object::Channel(chan) => chan
                .strait()
                .try_send(Outgoing::vectored(&slices).handles(packed))
                .map(|()| chan.related)
                .map_err(|error| (Status::from(error.error), error.handles)),
            _ => Err((Status::BAD_HANDLE, packed)),
        },
        Err(status) => Err((status, packed)),
    };
    match sent {
        Ok(related) => {
            parcels.into_iter().for_each(Parcel::close);
            super::tell_peer(related);
            Ok(())
        }
        Err((Status::SHOULD_WAIT, packed)) => {
            parcels.into_iter().zip(packed).for_each(|(parcel, handle)| parcel.put_back(handle));
            Err(Status::SHOULD_WAIT)
        }
        Err((status, packed)) => {
            parcels.into_iter().for_each(Parcel::close);
            drop(packed);
            Err(status)
        }
    }
}
