//! The types of the cases of the conformance suite.

#![allow(dead_code, reason = "some types are only decoded")]

use strait_fidl::{Fidl, FidlHandle, kind};

macro_rules! structs {
    ($($name:ident { $($(#[$attribute:meta])* $field:ident: $ty:ty),* })*) => {$(
        #[derive(Debug, Fidl)]
        pub(crate) struct $name {
            $($(#[$attribute])* pub(crate) $field: $ty),*
        }
    )*};
}

macro_rules! tables {
    ($($name:ident { $($ordinal:literal $(<= $max:literal)? $field:ident: $ty:ty),* })*) => {$(
        #[derive(Debug, Default, Fidl)]
        #[fidl(table)]
        pub(crate) struct $name {
            $(#[fidl($ordinal $(, max = $max)?)] pub(crate) $field: Option<$ty>),*
        }
    )*};
}

macro_rules! unions {
    (strict: $($name:ident { $($ordinal:literal $(<= $max:literal)? $field:ident($ty:ty)),* })*) => {$(
        #[derive(Debug, Fidl)]
        #[fidl(union, strict)]
        pub(crate) enum $name {
            $(#[fidl($ordinal $(, max = $max)?)] $field($ty)),*
        }
    )*};
    (flexible: $($name:ident { $($ordinal:literal $(<= $max:literal)? $field:ident($ty:ty)),* })*) => {$(
        #[derive(Debug, Fidl)]
        #[fidl(union, flexible)]
        pub(crate) enum $name {
            $(#[fidl($ordinal $(, max = $max)?)] $field($ty),)*
            #[fidl(unknown)]
            Unknown(u64),
        }
    )*};
}

structs! {
    EmptyStruct {}
    MyBool { value: bool }
    GoldenBoolStruct { v: bool }
    GoldenIntStruct { v: i16 }
    GoldenUintStruct { v: u16 }
    GoldenFloatStruct { v: f32 }
    GoldenDoubleStruct { v: f64 }
    GoldenStringStruct { v: String }
    GoldenNullableStringStruct { v: Option<String> }
    GoldenEnumStruct { v: GoldenEnum }
    GoldenBitsStruct { v: GoldenBits }
    GoldenTableStruct { v: GoldenTable }
    GoldenUnionStruct { v: GoldenUnion }
    GoldenNullableUnionStruct { v: Option<GoldenUnion> }
    GoldenByteArrayStruct { v: [u8; 4] }
    GoldenStructArrayStruct { v: [GoldenIntStruct; 2] }
    GoldenByteVectorStruct { v: Vec<u8> }
    GoldenNullableByteVectorStruct { v: Option<Vec<u8>> }
    GoldenStructVectorStruct { v: Vec<GoldenIntStruct> }
    GoldenNullableStruct { v: Option<Box<GoldenBoolStruct>> }
    GoldenHandleBasicRightsStruct { v: FidlHandle<kind::Fd> }
    GoldenNullableHandleStruct { v: Option<FidlHandle> }
    GoldenStringWithMaxSize2 { #[fidl(max = 2)] s: String }
    VectorWithLimit { #[fidl(max = 2)] v: Vec<u8> }
    VectorWrapper { v: Vec<u8> }
    OptionalVectorWrapper { v: Option<Vec<u8>> }
    VectorOfByteVector { v: Vec<Vec<u8>> }
    VectorOfStrings { v: Vec<String> }
    LotsOfVectors {
        v1: Vec<u16>, v2: Vec<u32>, v3: Vec<u64>, v4: Vec<String>,
        v5: Vec<i8>, v6: Vec<i16>, v7: Vec<i32>, v8: Vec<i64>, v9: Vec<bool>
    }
    VectorWithLimitInVector { #[fidl(max(_, 2))] v: Vec<Vec<u8>> }
    VectorWithLimitInArray { #[fidl(max = 2)] a: [Option<Vec<u8>>; 2] }
    VectorWithLimitInTable { t: TableWithVectorWithLimit }
    VectorWithLimitInUnion { u: UnionWithVectorWithLimit }
    StructOfEmptyTable { table: EmptyTable }
    StructOfSimpleTable { table: SimpleTable }
    TableFieldInlinedStruct { t: TableFieldInlined }
    TableFieldInlinedHandleStruct { t: TableFieldInlinedHandle }
    TableFieldOutOfLineStruct { t: TableFieldOutOfLine }
    TableFieldUnknownStruct { t: TableFieldUnknown }
    TableFieldUnsetFlexibleEnumInlinedStruct { t: TableFieldUnsetFlexibleEnumInlined }
    UnionWithBoundStringStruct { v: UnionWithBoundString }
    SingleVariantUnionStruct { u: SingleVariantUnion }
    Uint8UnionStruct { u: Uint8Union }
    ReverseOrdinalUnionStruct { u: ReverseOrdinalUnion }
    TestFlexibleXUnionInStruct { xu: SampleXUnion }
    TestStrictXUnionInStruct { xu: SampleStrictXUnion }
    TestFlexibleResourceXUnionInStruct { xu: SampleXUnion }
    TestInlineXUnionInStruct { before: String, xu: SampleXUnion, after: String }
    TestOptionalXUnionInStruct { before: String, xu: Option<SampleXUnion>, after: String }
    TestXUnionInTable { value: XUnionInTable }
    EnvelopeInliningTestUnionStruct { u: EnvelopeInliningTestUnion }
    RecursiveVectorUnionStruct { u: RecursiveVectorUnion }
    SingleHandle { h: FidlHandle }
    SingleOptionalHandle { h: Option<FidlHandle> }
    ArrayOfHandles { a: [FidlHandle; 3] }
    ArrayOfOptionalHandles { a: [Option<FidlHandle>; 3] }
    VectorOfHandles { v: Vec<FidlHandle> }
    BoxOfSingleHandle { b: Option<Box<SingleHandle>> }
    StructOfOptionalUnionOfHandle { u: Option<UnionOfHandle> }
    AlternatingHandlesAndFailures {
        h1: FidlHandle, #[fidl(max = 2)] failure_trigger1: String,
        h2: FidlHandle, #[fidl(max = 2)] failure_trigger2: String,
        h3: FidlHandle
    }
    MultipleHandleSubtypes { untyped: FidlHandle, event: FidlHandle<kind::Fd>, channel: FidlHandle<kind::Channel> }
    EmptyStructSandwich { before: String, es: EmptyStruct, after: String }
    Uint8Uint16Uint32Uint64 { f1: u8, f2: u16, f3: u32, f4: u64 }
    Uint64Uint32Uint16Uint8 { f1: u64, f2: u32, f3: u16, f4: u8 }
    ThreeByte { elem1: u8, elem2: u8, elem3: u8 }
    ThreeByteInStruct { elem1: ThreeByte, elem2: ThreeByte, elem3: ThreeByte }
    FiveByte { elem1: u32, elem2: u8 }
    FiveByteInVector { elems: Vec<FiveByte> }
    PaddingBetweenFieldsInt8Int32 { a: i8, b: i32 }
    Struct1Byte { a: u8 }
    Struct5Byte { a: i32, b: i8 }
    Struct8Byte { a: i64 }
    PaddingEndOfInlineObject5Byte { a: Struct5Byte }
    PaddingEndOfInlineObjectBeforeNextObject1Byte { out_of_line: Option<Box<Struct8Byte>>, in_line: Struct1Byte }
    RecursiveOptionalStruct { inner: Option<Box<RecursiveOptionalStruct>> }
    RecursiveOptionalAndUnionStruct { u: RecursiveOptionalAndUnion }
    RecursiveOptionalAndTableStruct { t: RecursiveOptionalAndTable }
}

tables! {
    GoldenTable { 1 v: i16 }
    TableWithVectorWithLimit { 1 <= 2 v: Vec<u8> }
    EmptyTable {}
    SimpleTable { 1 x: i64, 5 y: i64 }
    TableFieldInlined { 1 f: i32 }
    TableFieldInlinedHandle { 1 f: FidlHandle<kind::Channel> }
    TableFieldOutOfLine { 1 f: i64 }
    TableFieldUnknown {}
    TableFieldUnsetFlexibleEnumInlined { 1 signed_enum: SignedEnum, 2 unsigned_enum: UnsignedEnum, 3 always_set: bool }
    XUnionInTable { 1 before: String, 2 xu: SampleXUnion, 3 after: String }
    RecursiveOptionalAndTable { 1 recursive_optional: RecursiveOptionalStruct }
}

unions! {
    strict:
    GoldenUnion { 1 V(i16) }
    UnionWithBoundString { 1 <= 5 BoundFiveStr(String) }
    SingleVariantUnion { 1 X(u32) }
    Uint8Union { 1 Uint8Value(u8), 2 EmptyStruct(EmptyStruct) }
    ReverseOrdinalUnion { 4 X(i64), 2 Y(bool), 1 Z(u32) }
    SampleStrictXUnion { 1 U(u32) }
    RecursiveVectorUnion { 1 Vec(Vec<Option<RecursiveVectorUnion>>) }
    RecursiveOptionalAndUnion { 1 RecursiveOptional(RecursiveOptionalStruct) }
}

unions! {
    flexible:
    UnionWithVectorWithLimit { 1 <= 2 V(Vec<u8>) }
    SampleXUnion { 1 U(u32) }
    EnvelopeInliningTestUnion { 1 Small(u32), 2 Large(u64), 3 Handle(FidlHandle) }
    UnionOfHandle { 1 H(FidlHandle) }
}

#[derive(Debug, Fidl)]
#[fidl(strict)]
#[repr(u16)]
pub(crate) enum GoldenEnum {
    One = 1,
}

#[derive(Debug, Fidl)]
#[fidl(bits, strict, mask = 1)]
pub(crate) struct GoldenBits(pub(crate) u16);

#[derive(Debug, Fidl)]
#[fidl(flexible)]
#[repr(i32)]
pub(crate) enum SignedEnum {
    One = 1,
    #[fidl(unknown)]
    Unknown(i32),
}

#[derive(Debug, Fidl)]
#[fidl(flexible)]
#[repr(u16)]
pub(crate) enum UnsignedEnum {
    One = 1,
    #[fidl(unknown)]
    Unknown(u16),
}

/// Calls a generic function with the type of the given name.
macro_rules! with_type {
    ($name:expr, $call:ident($argument:expr)) => {
        with_type!(@ $name, $call($argument), EmptyStruct MyBool GoldenBoolStruct GoldenIntStruct GoldenUintStruct
            GoldenFloatStruct GoldenDoubleStruct GoldenStringStruct GoldenNullableStringStruct GoldenEnumStruct
            GoldenBitsStruct GoldenTableStruct GoldenUnionStruct GoldenNullableUnionStruct GoldenByteArrayStruct
            GoldenStructArrayStruct GoldenByteVectorStruct GoldenNullableByteVectorStruct GoldenStructVectorStruct
            GoldenNullableStruct GoldenHandleBasicRightsStruct GoldenNullableHandleStruct GoldenStringWithMaxSize2
            VectorWithLimit VectorWrapper OptionalVectorWrapper VectorOfByteVector VectorOfStrings LotsOfVectors
            VectorWithLimitInVector VectorWithLimitInArray VectorWithLimitInTable VectorWithLimitInUnion
            StructOfEmptyTable StructOfSimpleTable TableFieldInlinedStruct TableFieldInlinedHandleStruct
            TableFieldOutOfLineStruct TableFieldUnknownStruct TableFieldUnsetFlexibleEnumInlinedStruct
            UnionWithBoundStringStruct SingleVariantUnionStruct Uint8UnionStruct ReverseOrdinalUnionStruct
            TestFlexibleXUnionInStruct TestStrictXUnionInStruct TestFlexibleResourceXUnionInStruct
            TestInlineXUnionInStruct TestOptionalXUnionInStruct TestXUnionInTable EnvelopeInliningTestUnionStruct
            RecursiveVectorUnionStruct SingleHandle SingleOptionalHandle ArrayOfHandles ArrayOfOptionalHandles
            VectorOfHandles BoxOfSingleHandle StructOfOptionalUnionOfHandle AlternatingHandlesAndFailures
            MultipleHandleSubtypes EmptyStructSandwich Uint8Uint16Uint32Uint64 Uint64Uint32Uint16Uint8
            ThreeByteInStruct FiveByteInVector PaddingBetweenFieldsInt8Int32 PaddingEndOfInlineObject5Byte
            PaddingEndOfInlineObjectBeforeNextObject1Byte RecursiveOptionalStruct RecursiveOptionalAndUnionStruct
            RecursiveOptionalAndTableStruct)
    };
    (@ $name:expr, $call:ident($argument:expr), $($ty:ident)*) => {
        match $name {
            $(stringify!($ty) => $call::<$crate::common::types::$ty>($argument),)*
            other => panic!("no type {other}"),
        }
    };
}
pub(crate) use with_type;
