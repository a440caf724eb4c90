#include "go_asm.h"
#include "textflag.h"

// The plain loops of kernels.go on eight values at a time: the same operations
// in the same order, none fused (no VFMADD), none approximate (no VRCPPS, no
// VRSQRTPS). Main loops are unrolled by macros; the rest is done eight values at
// a time, and the last one to seven under a mask, whose other lanes are read as
// zeros and not written. There are no explicit prefetches: the processor detects
// these streams itself, and on 64 MiB prefetching 256 B to 4 KiB ahead cost up to
// 20 %.
//
// Registers: DI the rows, R8 and R9 the state, SI the update; DX the length, AX
// the next value, BX the end of the current loop.
//
// Operands are in Go's order: VSUBPS b, a, d is d = a - b.

// Sixteen enabled lanes, then sixteen masked ones.
DATA lanes<>+0(SB)/8, $-1
DATA lanes<>+8(SB)/8, $-1
DATA lanes<>+16(SB)/8, $-1
DATA lanes<>+24(SB)/8, $-1
DATA lanes<>+32(SB)/8, $-1
DATA lanes<>+40(SB)/8, $-1
DATA lanes<>+48(SB)/8, $-1
DATA lanes<>+56(SB)/8, $-1
GLOBL lanes<>(SB), RODATA|NOPTR, $128

DATA signBit<>+0(SB)/4, $0x80000000
GLOBL signBit<>(SB), RODATA|NOPTR, $4

DATA exponent<>+0(SB)/4, $0x7f800000
GLOBL exponent<>(SB), RODATA|NOPTR, $4

// BEGIN starts at value 0 and sets the end of a loop over whole groups of values.
#define BEGIN(group) \
	XORQ AX, AX; \
	MOVQ DX, BX; \
	ANDQ $~(group-1), BX

// EIGHTS sets the end of a loop over whole groups of eight.
#define EIGHTS \
	MOVQ DX, BX; \
	ANDQ $~7, BX

// MASK turns on the lanes of the values AX … DX-1, fewer than eight.
#define MASK(m) \
	MOVQ AX, CX; \
	SUBQ DX, CX; \
	LEAQ lanes<>+64(SB), BX; \
	VMOVDQU (BX)(CX*4), m

// func addAVX2(w, g []float32)
TEXT ·addAVX2(SB), NOSPLIT, $0-48
	MOVQ w_base+0(FP), DI
	MOVQ w_len+8(FP), DX
	MOVQ g_base+24(FP), SI
	BEGIN(32)

#define ADD(at, G) \
	VMOVUPS at(SI)(AX*4), G; \
	VADDPS at(DI)(AX*4), G, G; \
	VMOVUPS G, at(DI)(AX*4)

loop:
	CMPQ AX, BX
	JGE  rest
	ADD(0, Y0)
	ADD(32, Y1)
	ADD(64, Y2)
	ADD(96, Y3)
	ADDQ $32, AX
	JMP  loop

rest:
	EIGHTS

eights:
	CMPQ AX, BX
	JGE  tail
	ADD(0, Y0)
	ADDQ $8, AX
	JMP  eights

tail:
	CMPQ AX, DX
	JGE  done
	MASK(Y8)
	VMASKMOVPS (SI)(AX*4), Y8, Y0
	VMASKMOVPS (DI)(AX*4), Y8, Y1
	VADDPS Y1, Y0, Y0
	VMASKMOVPS Y0, Y8, (DI)(AX*4)

done:
	VZEROUPPER
	RET

// func sgdAVX2(w, g []float32, rate float32)
TEXT ·sgdAVX2(SB), NOSPLIT, $0-52
	MOVQ w_base+0(FP), DI
	MOVQ w_len+8(FP), DX
	MOVQ g_base+24(FP), SI
	VBROADCASTSS rate+48(FP), Y15
	BEGIN(32)

#define SGD(at, G, W) \
	VMULPS at(SI)(AX*4), Y15, G; \
	VMOVUPS at(DI)(AX*4), W; \
	VSUBPS G, W, W; \
	VMOVUPS W, at(DI)(AX*4)

loop:
	CMPQ AX, BX
	JGE  rest
	SGD(0, Y0, Y1)
	SGD(32, Y2, Y3)
	SGD(64, Y4, Y5)
	SGD(96, Y6, Y7)
	ADDQ $32, AX
	JMP  loop

rest:
	EIGHTS

eights:
	CMPQ AX, BX
	JGE  tail
	SGD(0, Y0, Y1)
	ADDQ $8, AX
	JMP  eights

tail:
	CMPQ AX, DX
	JGE  done
	MASK(Y8)
	VMASKMOVPS (SI)(AX*4), Y8, Y0
	VMASKMOVPS (DI)(AX*4), Y8, Y1
	VMULPS Y0, Y15, Y0
	VSUBPS Y0, Y1, Y1
	VMASKMOVPS Y1, Y8, (DI)(AX*4)

done:
	VZEROUPPER
	RET

// func momentumAVX2(w, v, g []float32, mu, rate float32)
TEXT ·momentumAVX2(SB), NOSPLIT, $0-80
	MOVQ w_base+0(FP), DI
	MOVQ w_len+8(FP), DX
	MOVQ v_base+24(FP), R8
	MOVQ g_base+48(FP), SI
	VBROADCASTSS mu+72(FP), Y14
	VBROADCASTSS rate+76(FP), Y15
	BEGIN(32)

#define MOMENTUM(at, V, W) \
	VMULPS at(R8)(AX*4), Y14, V; \
	VADDPS at(SI)(AX*4), V, V; \
	VMOVUPS V, at(R8)(AX*4); \
	VMULPS V, Y15, V; \
	VMOVUPS at(DI)(AX*4), W; \
	VSUBPS V, W, W; \
	VMOVUPS W, at(DI)(AX*4)

loop:
	CMPQ AX, BX
	JGE  rest
	MOMENTUM(0, Y0, Y1)
	MOMENTUM(32, Y2, Y3)
	MOMENTUM(64, Y4, Y5)
	MOMENTUM(96, Y6, Y7)
	ADDQ $32, AX
	JMP  loop

rest:
	EIGHTS

eights:
	CMPQ AX, BX
	JGE  tail
	MOMENTUM(0, Y0, Y1)
	ADDQ $8, AX
	JMP  eights

tail:
	CMPQ AX, DX
	JGE  done
	MASK(Y8)
	VMASKMOVPS (R8)(AX*4), Y8, Y0
	VMASKMOVPS (SI)(AX*4), Y8, Y2
	VMASKMOVPS (DI)(AX*4), Y8, Y1
	VMULPS Y0, Y14, Y0
	VADDPS Y2, Y0, Y0
	VMASKMOVPS Y0, Y8, (R8)(AX*4)
	VMULPS Y0, Y15, Y0
	VSUBPS Y0, Y1, Y1
	VMASKMOVPS Y1, Y8, (DI)(AX*4)

done:
	VZEROUPPER
	RET

// func nesterovAVX2(w, v, g []float32, mu, rate float32)
TEXT ·nesterovAVX2(SB), NOSPLIT, $0-80
	MOVQ w_base+0(FP), DI
	MOVQ w_len+8(FP), DX
	MOVQ v_base+24(FP), R8
	MOVQ g_base+48(FP), SI
	VBROADCASTSS mu+72(FP), Y14
	VBROADCASTSS rate+76(FP), Y15
	BEGIN(32)

// Computes the new v and w from v, g and w; g is overwritten.
#define NESTEROV_STEP(V, G, W) \
	VMULPS V, Y14, V; \
	VADDPS G, V, V

#define NESTEROV_DESCEND(V, G, W, T) \
	VMULPS V, Y14, T; \
	VADDPS T, G, G; \
	VMULPS G, Y15, G; \
	VSUBPS G, W, W

#define NESTEROV(at, V, G, W) \
	VMOVUPS at(R8)(AX*4), V; \
	VMOVUPS at(SI)(AX*4), G; \
	VMOVUPS at(DI)(AX*4), W; \
	NESTEROV_STEP(V, G, W); \
	VMOVUPS V, at(R8)(AX*4); \
	NESTEROV_DESCEND(V, G, W, V); \
	VMOVUPS W, at(DI)(AX*4)

loop:
	CMPQ AX, BX
	JGE  rest
	NESTEROV(0, Y0, Y1, Y2)
	NESTEROV(32, Y3, Y4, Y5)
	NESTEROV(64, Y6, Y7, Y8)
	NESTEROV(96, Y9, Y10, Y11)
	ADDQ $32, AX
	JMP  loop

rest:
	EIGHTS

eights:
	CMPQ AX, BX
	JGE  tail
	NESTEROV(0, Y0, Y1, Y2)
	ADDQ $8, AX
	JMP  eights

tail:
	CMPQ AX, DX
	JGE  done
	MASK(Y8)
	VMASKMOVPS (R8)(AX*4), Y8, Y0
	VMASKMOVPS (SI)(AX*4), Y8, Y1
	VMASKMOVPS (DI)(AX*4), Y8, Y2
	NESTEROV_STEP(Y0, Y1, Y2)
	VMASKMOVPS Y0, Y8, (R8)(AX*4)
	NESTEROV_DESCEND(Y0, Y1, Y2, Y0)
	VMASKMOVPS Y2, Y8, (DI)(AX*4)

done:
	VZEROUPPER
	RET

// func adagradAVX2(w, a, g []float32, rate, epsilon float32)
TEXT ·adagradAVX2(SB), NOSPLIT, $0-80
	MOVQ w_base+0(FP), DI
	MOVQ w_len+8(FP), DX
	MOVQ a_base+24(FP), R8
	MOVQ g_base+48(FP), SI
	VBROADCASTSS rate+72(FP), Y14
	VBROADCASTSS epsilon+76(FP), Y15
	BEGIN(32)

// a from a and g; then w from w, g and a, which are overwritten.
#define ADAGRAD_STEP(A, G, T) \
	VMULPS G, G, T; \
	VADDPS T, A, A

#define ADAGRAD_DESCEND(A, G, W) \
	VSQRTPS A, A; \
	VADDPS Y15, A, A; \
	VMULPS G, Y14, G; \
	VDIVPS A, G, G; \
	VSUBPS G, W, W

#define ADAGRAD(at, A, G, W) \
	VMOVUPS at(R8)(AX*4), A; \
	VMOVUPS at(SI)(AX*4), G; \
	ADAGRAD_STEP(A, G, W); \
	VMOVUPS A, at(R8)(AX*4); \
	VMOVUPS at(DI)(AX*4), W; \
	ADAGRAD_DESCEND(A, G, W); \
	VMOVUPS W, at(DI)(AX*4)

loop:
	CMPQ AX, BX
	JGE  rest
	ADAGRAD(0, Y0, Y1, Y2)
	ADAGRAD(32, Y3, Y4, Y5)
	ADAGRAD(64, Y6, Y7, Y8)
	ADAGRAD(96, Y9, Y10, Y11)
	ADDQ $32, AX
	JMP  loop

rest:
	EIGHTS

eights:
	CMPQ AX, BX
	JGE  tail
	ADAGRAD(0, Y0, Y1, Y2)
	ADDQ $8, AX
	JMP  eights

tail:
	CMPQ AX, DX
	JGE  done
	MASK(Y8)
	VMASKMOVPS (R8)(AX*4), Y8, Y0
	VMASKMOVPS (SI)(AX*4), Y8, Y1
	ADAGRAD_STEP(Y0, Y1, Y2)
	VMASKMOVPS Y0, Y8, (R8)(AX*4)
	VMASKMOVPS (DI)(AX*4), Y8, Y2
	ADAGRAD_DESCEND(Y0, Y1, Y2)
	VMASKMOVPS Y2, Y8, (DI)(AX*4)

done:
	VZEROUPPER
	RET

// func adamAVX2(w, m, v, g []float32, k *adamFactors)
TEXT ·adamAVX2(SB), NOSPLIT, $0-104
	MOVQ w_base+0(FP), DI
	MOVQ w_len+8(FP), DX
	MOVQ m_base+24(FP), R8
	MOVQ v_base+48(FP), R9
	MOVQ g_base+72(FP), SI
	MOVQ k+96(FP), R10
	VBROADCASTSS adamFactors_beta1(R10), Y9
	VBROADCASTSS adamFactors_rest1(R10), Y10
	VBROADCASTSS adamFactors_beta2(R10), Y11
	VBROADCASTSS adamFactors_rest2(R10), Y12
	VBROADCASTSS adamFactors_step(R10), Y13
	VBROADCASTSS adamFactors_scale(R10), Y14
	VBROADCASTSS adamFactors_epsilon(R10), Y15
	BEGIN(16)

// m and v from m, v and g, which is overwritten; then w from w, m and v, which are overwritten.
#define ADAM_STEP(M, V, G, T) \
	VMULPS M, Y9, M; \
	VMULPS G, Y10, T; \
	VADDPS T, M, M; \
	VMULPS G, G, G; \
	VMULPS G, Y12, G; \
	VMULPS V, Y11, V; \
	VADDPS G, V, V

#define ADAM_DESCEND(M, V, W) \
	VSQRTPS V, V; \
	VMULPS V, Y14, V; \
	VADDPS Y15, V, V; \
	VMULPS M, Y13, M; \
	VDIVPS V, M, M; \
	VSUBPS M, W, W

#define ADAM(at, M, V, G, T) \
	VMOVUPS at(R8)(AX*4), M; \
	VMOVUPS at(R9)(AX*4), V; \
	VMOVUPS at(SI)(AX*4), G; \
	ADAM_STEP(M, V, G, T); \
	VMOVUPS M, at(R8)(AX*4); \
	VMOVUPS V, at(R9)(AX*4); \
	VMOVUPS at(DI)(AX*4), G; \
	ADAM_DESCEND(M, V, G); \
	VMOVUPS G, at(DI)(AX*4)

loop:
	CMPQ AX, BX
	JGE  rest
	ADAM(0, Y0, Y1, Y2, Y3)
	ADAM(32, Y4, Y5, Y6, Y7)
	ADDQ $16, AX
	JMP  loop

rest:
	EIGHTS

eights:
	CMPQ AX, BX
	JGE  tail
	ADAM(0, Y0, Y1, Y2, Y3)
	ADDQ $8, AX
	JMP  eights

tail:
	CMPQ AX, DX
	JGE  done
	MASK(Y8)
	VMASKMOVPS (R8)(AX*4), Y8, Y0
	VMASKMOVPS (R9)(AX*4), Y8, Y1
	VMASKMOVPS (SI)(AX*4), Y8, Y2
	ADAM_STEP(Y0, Y1, Y2, Y3)
	VMASKMOVPS Y0, Y8, (R8)(AX*4)
	VMASKMOVPS Y1, Y8, (R9)(AX*4)
	VMASKMOVPS (DI)(AX*4), Y8, Y2
	ADAM_DESCEND(Y0, Y1, Y2)
	VMASKMOVPS Y2, Y8, (DI)(AX*4)

done:
	VZEROUPPER
	RET

// func ftrlAVX2(w, z, n, g []float32, k *ftrlFactors)
TEXT ·ftrlAVX2(SB), NOSPLIT, $0-104
	MOVQ w_base+0(FP), DI
	MOVQ w_len+8(FP), DX
	MOVQ z_base+24(FP), R8
	MOVQ n_base+48(FP), R9
	MOVQ g_base+72(FP), SI
	MOVQ k+96(FP), R10
	VBROADCASTSS ftrlFactors_inverse(R10), Y11
	VBROADCASTSS ftrlFactors_beta(R10), Y12
	VBROADCASTSS ftrlFactors_l1(R10), Y13
	VBROADCASTSS ftrlFactors_l2(R10), Y14
	VBROADCASTSS signBit<>(SB), Y15
	BEGIN(16)

// N, G: n and its root, both new; W: s·w. Then Z and W from Z, G (g), W, N (√n).
#define FTRL_STEP(N, G, W, T) \
	VSQRTPS N, T; \
	VMULPS G, G, G; \
	VADDPS G, N, N; \
	VSQRTPS N, G; \
	VSUBPS T, G, T; \
	VMULPS T, Y11, T; \
	VMULPS W, T, W

#define FTRL_DESCEND(Z, G, W, N, T) \
	VSUBPS W, G, W; \
	VADDPS W, Z, Z; \
	VADDPS Y12, N, N; \
	VMULPS N, Y11, N; \
	VADDPS Y14, N, N; \
	VANDPS Z, Y15, W; \
	VXORPS W, Y13, T; \
	VXORPS W, Z, W; \
	VSUBPS Z, T, T; \
	VDIVPS N, T, T; \
	VCMPPS $2, Y13, W, W; \
	VANDNPS T, W, W

#define FTRL(at, Z, N, G, W, T) \
	VMOVUPS at(R9)(AX*4), N; \
	VMOVUPS at(SI)(AX*4), G; \
	VMOVUPS at(DI)(AX*4), W; \
	VMOVUPS at(R8)(AX*4), Z; \
	FTRL_STEP(N, G, W, T); \
	VMOVUPS N, at(R9)(AX*4); \
	VMOVUPS at(SI)(AX*4), N; \
	FTRL_DESCEND(Z, N, W, G, T); \
	VMOVUPS Z, at(R8)(AX*4); \
	VMOVUPS W, at(DI)(AX*4)

loop:
	CMPQ AX, BX
	JGE  rest
	FTRL(0, Y0, Y1, Y2, Y3, Y4)
	FTRL(32, Y5, Y6, Y7, Y8, Y9)
	ADDQ $16, AX
	JMP  loop

rest:
	EIGHTS

eights:
	CMPQ AX, BX
	JGE  tail
	FTRL(0, Y0, Y1, Y2, Y3, Y4)
	ADDQ $8, AX
	JMP  eights

tail:
	CMPQ AX, DX
	JGE  done
	MASK(Y10)
	VMASKMOVPS (R8)(AX*4), Y10, Y0
	VMASKMOVPS (R9)(AX*4), Y10, Y1
	VMASKMOVPS (SI)(AX*4), Y10, Y2
	VMASKMOVPS (DI)(AX*4), Y10, Y3
	FTRL_STEP(Y1, Y2, Y3, Y4)
	VMASKMOVPS Y1, Y10, (R9)(AX*4)
	VMASKMOVPS (SI)(AX*4), Y10, Y1
	FTRL_DESCEND(Y0, Y1, Y3, Y2, Y4)
	VMASKMOVPS Y0, Y10, (R8)(AX*4)
	VMASKMOVPS Y3, Y10, (DI)(AX*4)

done:
	VZEROUPPER
	RET

// func clipAVX2(dst, g []float32, bound, scale float32)
TEXT ·clipAVX2(SB), NOSPLIT, $0-56
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), DX
	MOVQ g_base+24(FP), SI
	VBROADCASTSS bound+48(FP), Y14
	VBROADCASTSS scale+52(FP), Y15
	VBROADCASTSS signBit<>(SB), Y13
	VXORPS Y13, Y14, Y13 // -bound
	BEGIN(32)

// A minimum or maximum with a NaN returns the second source, here g: NaN stays NaN.
#define CLIP(G) \
	VMINPS G, Y14, G; \
	VMAXPS G, Y13, G; \
	VMULPS G, Y15, G

loop:
	CMPQ AX, BX
	JGE  rest
	VMOVUPS 0(SI)(AX*4), Y0
	VMOVUPS 32(SI)(AX*4), Y1
	VMOVUPS 64(SI)(AX*4), Y2
	VMOVUPS 96(SI)(AX*4), Y3
	CLIP(Y0)
	CLIP(Y1)
	CLIP(Y2)
	CLIP(Y3)
	VMOVUPS Y0, 0(DI)(AX*4)
	VMOVUPS Y1, 32(DI)(AX*4)
	VMOVUPS Y2, 64(DI)(AX*4)
	VMOVUPS Y3, 96(DI)(AX*4)
	ADDQ $32, AX
	JMP  loop

rest:
	EIGHTS

eights:
	CMPQ AX, BX
	JGE  tail
	VMOVUPS (SI)(AX*4), Y0
	CLIP(Y0)
	VMOVUPS Y0, (DI)(AX*4)
	ADDQ $8, AX
	JMP  eights

tail:
	CMPQ AX, DX
	JGE  done
	MASK(Y8)
	VMASKMOVPS (SI)(AX*4), Y8, Y0
	CLIP(Y0)
	VMASKMOVPS Y0, Y8, (DI)(AX*4)

done:
	VZEROUPPER
	RET

// func squaresAVX2(g []float32, bound float32) float64
TEXT ·squaresAVX2(SB), NOSPLIT, $0-40
	MOVQ g_base+0(FP), SI
	MOVQ g_len+8(FP), DX
	VBROADCASTSS bound+24(FP), X14
	VBROADCASTSS signBit<>(SB), X13
	VXORPS X13, X14, X13 // -bound
	VXORPD Y0, Y0, Y0    // the partial sums 0 … 3
	VXORPD Y1, Y1, Y1    // 4 … 7
	VXORPD Y2, Y2, Y2    // 8 … 11
	VXORPD Y3, Y3, Y3    // 12 … 15
	BEGIN(16)

#define SQUARES(at, X, Y, SUM) \
	VMOVUPS at(SI)(AX*4), X; \
	VMINPS X, X14, X; \
	VMAXPS X, X13, X; \
	VCVTPS2PD X, Y; \
	VMULPD Y, Y, Y; \
	VADDPD Y, SUM, SUM

// A masked lane adds 0, which does not change a sum of squares.
#define SQUARES_UNDER(at, X, Y, SUM) \
	VMOVUPS at(BX)(CX*4), X8; \
	VMASKMOVPS at(SI)(AX*4), X8, X; \
	VMINPS X, X14, X; \
	VMAXPS X, X13, X; \
	VANDPS X, X8, X; \
	VCVTPS2PD X, Y; \
	VMULPD Y, Y, Y; \
	VADDPD Y, SUM, SUM

loop:
	CMPQ AX, BX
	JGE  tail
	SQUARES(0, X4, Y4, Y0)
	SQUARES(16, X5, Y5, Y1)
	SQUARES(32, X6, Y6, Y2)
	SQUARES(48, X7, Y7, Y3)
	ADDQ $16, AX
	JMP  loop

tail:
	CMPQ AX, DX
	JGE  done
	MOVQ AX, CX
	SUBQ DX, CX
	LEAQ lanes<>+64(SB), BX
	SQUARES_UNDER(0, X4, Y4, Y0)
	SQUARES_UNDER(16, X5, Y5, Y1)
	SQUARES_UNDER(32, X6, Y6, Y2)
	SQUARES_UNDER(48, X7, Y7, Y3)

done:
	VADDPD Y2, Y0, Y0
	VADDPD Y3, Y1, Y1
	VADDPD Y1, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPD X1, X0, X0
	VUNPCKHPD X0, X0, X1
	VADDSD X1, X0, X0
	VMOVSD X0, ret+32(FP)
	VZEROUPPER
	RET

// func gapAVX2(a, b []float32) float64
TEXT ·gapAVX2(SB), NOSPLIT, $0-56
	MOVQ a_base+0(FP), DI
	MOVQ a_len+8(FP), DX
	MOVQ b_base+24(FP), SI
	VXORPD Y0, Y0, Y0 // the partial sums 0 … 3
	VXORPD Y1, Y1, Y1 // 4 … 7
	VXORPD Y2, Y2, Y2 // 8 … 11
	VXORPD Y3, Y3, Y3 // 12 … 15
	BEGIN(16)

#define GAP(at, X, Y, SUM) \
	VMOVUPS at(DI)(AX*4), X; \
	VSUBPS at(SI)(AX*4), X, X; \
	VCVTPS2PD X, Y; \
	VMULPD Y, Y, Y; \
	VADDPD Y, SUM, SUM

// A masked lane adds 0, which does not change a sum of squares.
#define GAP_UNDER(at, X, Y, SUM) \
	VMOVUPS at(BX)(CX*4), X8; \
	VMASKMOVPS at(DI)(AX*4), X8, X; \
	VMASKMOVPS at(SI)(AX*4), X8, X9; \
	VSUBPS X9, X, X; \
	VCVTPS2PD X, Y; \
	VMULPD Y, Y, Y; \
	VADDPD Y, SUM, SUM

loop:
	CMPQ AX, BX
	JGE  tail
	GAP(0, X4, Y4, Y0)
	GAP(16, X5, Y5, Y1)
	GAP(32, X6, Y6, Y2)
	GAP(48, X7, Y7, Y3)
	ADDQ $16, AX
	JMP  loop

tail:
	CMPQ AX, DX
	JGE  done
	MOVQ AX, CX
	SUBQ DX, CX
	LEAQ lanes<>+64(SB), BX
	GAP_UNDER(0, X4, Y4, Y0)
	GAP_UNDER(16, X5, Y5, Y1)
	GAP_UNDER(32, X6, Y6, Y2)
	GAP_UNDER(48, X7, Y7, Y3)

done:
	VADDPD Y2, Y0, Y0
	VADDPD Y3, Y1, Y1
	VADDPD Y1, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPD X1, X0, X0
	VUNPCKHPD X0, X0, X1
	VADDSD X1, X0, X0
	VMOVSD X0, ret+48(FP)
	VZEROUPPER
	RET

// func finiteAVX2(values []float32) int
TEXT ·finiteAVX2(SB), NOSPLIT, $0-32
	MOVQ values_base+0(FP), SI
	MOVQ values_len+8(FP), DX
	VBROADCASTSS exponent<>(SB), Y15
	BEGIN(32)

// All ones in the lanes whose exponent is all ones.
#define SUSPECT(at, X) \
	VPAND at(SI)(AX*4), Y15, X; \
	VPCMPEQD X, Y15, X

loop:
	CMPQ AX, BX
	JGE  rest
	SUSPECT(0, Y0)
	SUSPECT(32, Y1)
	SUSPECT(64, Y2)
	SUSPECT(96, Y3)
	VPOR Y0, Y1, Y0
	VPOR Y2, Y3, Y2
	VPOR Y0, Y2, Y0
	VPTEST Y0, Y0
	JNE  rest
	ADDQ $32, AX
	JMP  loop

rest: // or among these 32
	EIGHTS

eights:
	CMPQ AX, BX
	JGE  done
	SUSPECT(0, Y0)
	VPTEST Y0, Y0
	JNE  done
	ADDQ $8, AX
	JMP  eights

done:
	MOVQ AX, ret+24(FP)
	VZEROUPPER
	RET

// SUM_UP adds up the sixteen partial sums Y0 … Y3 in X0.
#define SUM_UP \
	VADDPD Y2, Y0, Y0; \
	VADDPD Y3, Y1, Y1; \
	VADDPD Y1, Y0, Y0; \
	SUM_FOUR

#define SUM_FOUR \
	VEXTRACTF128 $1, Y0, X1; \
	VADDPD X1, X0, X0; \
	VUNPCKHPD X0, X0, X1; \
	VADDSD X1, X0, X0

// func gapsAVX2(dst []float64, a, b []float32, width int)
//
// It is gapAVX2 for one row after another: R8 the next result, R9 the number of rows left. Rows of
// two, four and eight values have loops of their own, which omit sums that are 0.
TEXT ·gapsAVX2(SB), NOSPLIT, $0-80
	MOVQ dst_base+0(FP), R8
	MOVQ dst_len+8(FP), R9
	MOVQ a_base+24(FP), DI
	MOVQ b_base+48(FP), SI
	MOVQ width+72(FP), DX
	XORQ AX, AX
	CMPQ DX, $8
	JEQ  eight
	CMPQ DX, $4
	JEQ  four
	CMPQ DX, $2
	JEQ  two

row:
	TESTQ  R9, R9
	JZ     end
	VXORPD Y0, Y0, Y0
	VXORPD Y1, Y1, Y1
	VXORPD Y2, Y2, Y2
	VXORPD Y3, Y3, Y3
	BEGIN(16)

loop:
	CMPQ AX, BX
	JGE  tail
	GAP(0, X4, Y4, Y0)
	GAP(16, X5, Y5, Y1)
	GAP(32, X6, Y6, Y2)
	GAP(48, X7, Y7, Y3)
	ADDQ $16, AX
	JMP  loop

tail:
	CMPQ AX, DX
	JGE  done
	MOVQ AX, CX
	SUBQ DX, CX
	LEAQ lanes<>+64(SB), BX
	GAP_UNDER(0, X4, Y4, Y0)
	GAP_UNDER(16, X5, Y5, Y1)
	GAP_UNDER(32, X6, Y6, Y2)
	GAP_UNDER(48, X7, Y7, Y3)

done:
	SUM_UP
	VMOVSD X0, (R8)
	ADDQ   $8, R8
	LEAQ   (DI)(DX*4), DI
	LEAQ   (SI)(DX*4), SI
	DECQ   R9
	JMP    row

// GAP_FIRST is GAP for an empty sum.
#define GAP_FIRST(at, X, Y) \
	VMOVUPS at(DI)(AX*4), X; \
	VSUBPS at(SI)(AX*4), X, X; \
	VCVTPS2PD X, Y; \
	VMULPD Y, Y, Y

eight:
	TESTQ  R9, R9
	JZ     end
	GAP_FIRST(0, X0, Y0)
	GAP_FIRST(16, X1, Y1)
	VADDPD Y1, Y0, Y0
	SUM_FOUR
	VMOVSD X0, (R8)
	ADDQ   $8, R8
	ADDQ   $8, AX
	DECQ   R9
	JMP    eight

four:
	TESTQ  R9, R9
	JZ     end
	GAP_FIRST(0, X0, Y0)
	SUM_FOUR
	VMOVSD X0, (R8)
	ADDQ   $8, R8
	ADDQ   $4, AX
	DECQ   R9
	JMP    four

two:
	TESTQ     R9, R9
	JZ        end
	VMOVSD    (DI)(AX*4), X0
	VMOVSD    (SI)(AX*4), X1
	VSUBPS    X1, X0, X0
	VCVTPS2PD X0, X0
	VMULPD    X0, X0, X0
	VUNPCKHPD X0, X0, X1
	VADDSD    X1, X0, X0
	VMOVSD    X0, (R8)
	ADDQ      $8, R8
	ADDQ      $2, AX
	DECQ      R9
	JMP       two

end:
	VZEROUPPER
	RET

// MOST_OF returns the largest lane of X13.
#define MOST_OF \
	VPSHUFD $0x4e, X13, X1; \
	VPMAXUD X1, X13, X13; \
	VPSHUFD $0xb1, X13, X1; \
	VPMAXUD X1, X13, X13; \
	VMOVD X13, AX

// func rootsAVX2(dst []uint32, squares []float64, by float64) (most uint32)
//
// The number of squares is a multiple of four.
TEXT ·rootsAVX2(SB), NOSPLIT, $0-60
	MOVQ dst_base+0(FP), DI
	MOVQ squares_base+24(FP), SI
	MOVQ squares_len+32(FP), DX
	VBROADCASTSD by+48(FP), Y15
	VBROADCASTSS exponent<>(SB), X14
	VPXOR X13, X13, X13
	VXORPD Y12, Y12, Y12
	XORQ AX, AX

loop:
	CMPQ AX, DX
	JGE  done
	VMOVUPD (SI)(AX*8), Y0
	VCMPPD $4, Y12, Y0, Y1 // nonzero lanes
	VEXTRACTF128 $1, Y1, X2
	VSHUFPS $0x88, X2, X1, X1
	VPSRLD $31, X1, X1
	VSQRTPD Y0, Y0
	VDIVPD Y15, Y0, Y0
	VCVTPD2PSY Y0, X0
	VPMINUD X14, X0, X0
	VPMAXUD X1, X0, X0
	VMOVDQU X0, (DI)(AX*4)
	VPMAXUD X0, X13, X13
	ADDQ $4, AX
	JMP  loop

done:
	MOST_OF
	MOVL AX, most+56(FP)
	VZEROUPPER
	RET

// func apartAVX2(dst []uint32, a, b []float32, by float32) (most uint32)
//
// The number of values is a multiple of eight.
TEXT ·apartAVX2(SB), NOSPLIT, $0-84
	MOVQ dst_base+0(FP), DI
	MOVQ a_base+24(FP), SI
	MOVQ a_len+32(FP), DX
	MOVQ b_base+48(FP), R8
	VBROADCASTSS by+72(FP), Y15
	VBROADCASTSS exponent<>(SB), Y14
	VBROADCASTSS signBit<>(SB), Y11
	VPXOR Y13, Y13, Y13
	VXORPS Y12, Y12, Y12
	XORQ AX, AX

loop:
	CMPQ AX, DX
	JGE  done
	VMOVUPS (SI)(AX*4), Y0
	VSUBPS (R8)(AX*4), Y0, Y0
	VCMPPS $4, Y12, Y0, Y1 // nonzero lanes
	VPSRLD $31, Y1, Y1
	VANDNPS Y0, Y11, Y0
	VDIVPS Y15, Y0, Y0
	VPMINUD Y14, Y0, Y0
	VPMAXUD Y1, Y0, Y0
	VMOVDQU Y0, (DI)(AX*4)
	VPMAXUD Y0, Y13, Y13
	ADDQ $8, AX
	JMP  loop

done:
	VEXTRACTI128 $1, Y13, X1
	VPMAXUD X1, X13, X13
	MOST_OF
	MOVL AX, most+80(FP)
	VZEROUPPER
	RET

// func atLeastAVX2(dst []uint64, keys []uint32, least uint32)
//
// There are 64 keys for each word of dst.
TEXT ·atLeastAVX2(SB), NOSPLIT, $0-52
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), DX
	MOVQ keys_base+24(FP), SI
	VBROADCASTSS least+48(FP), Y15

#define EIGHT_KEYS(at, Y) \
	VMOVDQU at(SI), Y; \
	VPMAXUD Y15, Y, Y14; \
	VPCMPEQD Y14, Y, Y

// THIRTY_TWO sets the low half of R to the mask of those of 32 keys that are large enough.
#define THIRTY_TWO(at, R) \
	EIGHT_KEYS(at, Y0); \
	EIGHT_KEYS(at+32, Y1); \
	EIGHT_KEYS(at+64, Y2); \
	EIGHT_KEYS(at+96, Y3); \
	VPACKSSDW Y1, Y0, Y0; \
	VPACKSSDW Y3, Y2, Y2; \
	VPACKSSWB Y2, Y0, Y0; \
	VPERMD Y0, Y13, Y0; \
	VPMOVMSKB Y0, R

	VMOVDQU keyOrder<>(SB), Y13

loop:
	TESTQ DX, DX
	JZ    done
	THIRTY_TWO(0, R8)
	THIRTY_TWO(128, R9)
	SHLQ  $32, R9
	ORQ   R8, R9
	MOVQ  R9, (DI)
	ADDQ  $8, DI
	ADDQ  $256, SI
	DECQ  DX
	JMP   loop

done:
	VZEROUPPER
	RET

// The order in which packing leaves groups of four keys, half by half.
DATA keyOrder<>+0(SB)/4, $0
DATA keyOrder<>+4(SB)/4, $4
DATA keyOrder<>+8(SB)/4, $1
DATA keyOrder<>+12(SB)/4, $5
DATA keyOrder<>+16(SB)/4, $2
DATA keyOrder<>+20(SB)/4, $6
DATA keyOrder<>+24(SB)/4, $3
DATA keyOrder<>+28(SB)/4, $7
GLOBL keyOrder<>(SB), RODATA|NOPTR, $32
