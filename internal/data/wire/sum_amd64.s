#include "textflag.h"

// x^n mod P for CRC-32C, reflected: the low half of the folded value is 64 bits
// farther from the end than the high half. Over 256 bytes n is 8·256+31 and
// 8·256-33, and so on.
DATA over256<>+0(SB)/8, $0xdcb17aa4
DATA over256<>+8(SB)/8, $0xb9e02b86
GLOBL over256<>(SB), RODATA|NOPTR, $16
DATA over64<>+0(SB)/8, $0x740eef02
DATA over64<>+8(SB)/8, $0x9e4addf8
GLOBL over64<>(SB), RODATA|NOPTR, $16
DATA over16<>+0(SB)/8, $0xf20c0dfe
DATA over16<>+8(SB)/8, $0x493c7d27
GLOBL over16<>(SB), RODATA|NOPTR, $16

// FOLD shifts acc by the distance that k encodes and adds next to it.
#define FOLD(acc, next, k, tmp) \
	VPCLMULQDQ $0x00, k, acc, tmp; \
	VPCLMULQDQ $0x11, k, acc, acc; \
	VPTERNLOGQ $0x96, next, tmp, acc

#define FOLD16(acc, next, k, tmp) \
	VPCLMULQDQ $0x00, k, acc, tmp; \
	VPCLMULQDQ $0x11, k, acc, acc; \
	VPXOR      tmp, acc, acc; \
	VPXOR      next, acc, acc

// func fold(sum uint32, b []byte) uint32
TEXT ·fold(SB), NOSPLIT, $0-36
	MOVL sum+0(FP), AX
	MOVQ b_base+8(FP), SI
	MOVQ b_len+16(FP), CX

	VMOVDQU64       0(SI), Z0
	VMOVDQU64       64(SI), Z1
	VMOVDQU64       128(SI), Z2
	VMOVDQU64       192(SI), Z3
	VMOVD           AX, X4
	VPXORQ          Z4, Z0, Z0
	VBROADCASTI32X4 over256<>(SB), Z5
	ADDQ            $256, SI
	SUBQ            $256, CX

loop:
	CMPQ CX, $256
	JB   done
	FOLD(Z0, 0(SI), Z5, Z6)
	FOLD(Z1, 64(SI), Z5, Z7)
	FOLD(Z2, 128(SI), Z5, Z8)
	FOLD(Z3, 192(SI), Z5, Z9)
	ADDQ $256, SI
	SUBQ $256, CX
	JMP  loop

done:
	VBROADCASTI32X4 over64<>(SB), Z5
	FOLD(Z0, Z1, Z5, Z6)
	FOLD(Z0, Z2, Z5, Z6)
	FOLD(Z0, Z3, Z5, Z6)

	VMOVDQU       over16<>(SB), X5
	VEXTRACTI32X4 $1, Z0, X1
	VEXTRACTI32X4 $2, Z0, X2
	VEXTRACTI32X4 $3, Z0, X3
	VMOVDQA       X0, X4
	FOLD16(X4, X1, X5, X6)
	FOLD16(X4, X2, X5, X6)
	FOLD16(X4, X3, X5, X6)

	// The sum of the remaining 16 bytes is the sum of all bytes.
	VMOVQ   X4, R8
	VPEXTRQ $1, X4, R9
	XORL    AX, AX
	CRC32Q  R8, AX
	CRC32Q  R9, AX
	MOVL    AX, ret+32(FP)
	VZEROUPPER
	RET
