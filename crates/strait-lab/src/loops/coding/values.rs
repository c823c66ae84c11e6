//! The values that are encoded.

/// The number of bytes of each of the vectors in a vector.
pub(super) const INNER: usize = 64;

/// Returns bytes that are not all alike.
pub(super) fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + 1) as u8).collect()
}

/// Returns vectors of [`INNER`] bytes each, `size` bytes in all.
pub(super) fn vectors(size: usize) -> Vec<Vec<u8>> {
    bytes(size).chunks(INNER).map(<[u8]>::to_vec).collect()
}

/// Calls a macro with the names of 256 fields, each with its number from 1.
macro_rules! with_fields {
    ($call:ident) => {
        $call! {
            f0 1, f1 2, f2 3, f3 4, f4 5, f5 6, f6 7, f7 8, f8 9, f9 10, f10 11, f11 12, f12 13, f13 14, f14 15, f15 16,
            f16 17, f17 18, f18 19, f19 20, f20 21, f21 22, f22 23, f23 24, f24 25, f25 26, f26 27, f27 28, f28 29, f29 30, f30 31, f31 32,
            f32 33, f33 34, f34 35, f35 36, f36 37, f37 38, f38 39, f39 40, f40 41, f41 42, f42 43, f43 44, f44 45, f45 46, f46 47, f47 48,
            f48 49, f49 50, f50 51, f51 52, f52 53, f53 54, f54 55, f55 56, f56 57, f57 58, f58 59, f59 60, f60 61, f61 62, f62 63, f63 64,
            f64 65, f65 66, f66 67, f67 68, f68 69, f69 70, f70 71, f71 72, f72 73, f73 74, f74 75, f75 76, f76 77, f77 78, f78 79, f79 80,
            f80 81, f81 82, f82 83, f83 84, f84 85, f85 86, f86 87, f87 88, f88 89, f89 90, f90 91, f91 92, f92 93, f93 94, f94 95, f95 96,
            f96 97, f97 98, f98 99, f99 100, f100 101, f101 102, f102 103, f103 104, f104 105, f105 106, f106 107, f107 108, f108 109, f109 110, f110 111, f111 112,
            f112 113, f113 114, f114 115, f115 116, f116 117, f117 118, f118 119, f119 120, f120 121, f121 122, f122 123, f123 124, f124 125, f125 126, f126 127, f127 128,
            f128 129, f129 130, f130 131, f131 132, f132 133, f133 134, f134 135, f135 136, f136 137, f137 138, f138 139, f139 140, f140 141, f141 142, f142 143, f143 144,
            f144 145, f145 146, f146 147, f147 148, f148 149, f149 150, f150 151, f151 152, f152 153, f153 154, f154 155, f155 156, f156 157, f157 158, f158 159, f159 160,
            f160 161, f161 162, f162 163, f163 164, f164 165, f165 166, f166 167, f167 168, f168 169, f169 170, f170 171, f171 172, f172 173, f173 174, f174 175, f175 176,
            f176 177, f177 178, f178 179, f179 180, f180 181, f181 182, f182 183, f183 184, f184 185, f185 186, f186 187, f187 188, f188 189, f189 190, f190 191, f191 192,
            f192 193, f193 194, f194 195, f195 196, f196 197, f197 198, f198 199, f199 200, f200 201, f201 202, f202 203, f203 204, f204 205, f205 206, f206 207, f207 208,
            f208 209, f209 210, f210 211, f211 212, f212 213, f213 214, f214 215, f215 216, f216 217, f217 218, f218 219, f219 220, f220 221, f221 222, f222 223, f223 224,
            f224 225, f225 226, f226 227, f227 228, f228 229, f229 230, f230 231, f231 232, f232 233, f233 234, f234 235, f235 236, f236 237, f237 238, f238 239, f239 240,
            f240 241, f241 242, f242 243, f243 244, f244 245, f245 246, f246 247, f247 248, f248 249, f249 250, f250 251, f251 252, f252 253, f253 254, f254 255, f255 256,
        }
    };
}
pub(super) use with_fields;

/// Defines a struct of 256 `u8` fields, with these attributes.
macro_rules! fields {
    ($(#[$attribute:meta])* $name:ident: $($field:ident $number:literal,)*) => {
        $(#[$attribute])*
        pub(super) struct $name {
            $($field: u8),*
        }

        impl $name {
            /// Returns the struct whose fields are these bytes.
            pub(super) fn of(bytes: &[u8]) -> Self {
                Self { $($field: bytes[$number - 1]),* }
            }
        }
    };
}
pub(super) use fields;
