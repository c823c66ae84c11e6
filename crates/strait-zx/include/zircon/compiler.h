// Macros of the compiler for the other headers.
#ifndef ZIRCON_COMPILER_H_
#define ZIRCON_COMPILER_H_

#ifdef __cplusplus
#define __BEGIN_CDECLS extern "C" {
#define __END_CDECLS }
#else
#define __BEGIN_CDECLS
#define __END_CDECLS
#endif

#endif  // ZIRCON_COMPILER_H_
