#include "textflag.h"

// The plain loops of kernel.go on eight values at a time: the same operations in
// the same order, none fused (no VFMADD). A row of rank 100 takes 13 registers'
// worth, so both rows of a rating are read twice, the second time from the
// first-level cache.
//
// Registers: DI and SI the rows, DX their length, AX the next value, BX where
// the loop over 32 values ends. Operands are in Go's order: VSUBSS b, a, d is
// d = a - b.

// DOT leaves the product of the rows in X0.
#define DOT(thirtyTwo, eights, sum) \
	VXORPS Y0, Y0, Y0; \
	XORQ AX, AX; \
	MOVQ DX, BX; \
	ANDQ $~31, BX; \
thirtyTwo: \
	CMPQ AX, BX; \
	JGE  eights; \
	VMOVUPS (DI)(AX*4), Y1; \
	VMOVUPS 32(DI)(AX*4), Y2; \
	VMOVUPS 64(DI)(AX*4), Y3; \
	VMOVUPS 96(DI)(AX*4), Y4; \
	VMULPS (SI)(AX*4), Y1, Y1; \
	VMULPS 32(SI)(AX*4), Y2, Y2; \
	VMULPS 64(SI)(AX*4), Y3, Y3; \
	VMULPS 96(SI)(AX*4), Y4, Y4; \
	VADDPS Y2, Y1, Y1; \
	VADDPS Y4, Y3, Y3; \
	VADDPS Y3, Y1, Y1; \
	VADDPS Y1, Y0, Y0; \
	ADDQ $32, AX; \
	JMP  thirtyTwo; \
eights: \
	CMPQ AX, DX; \
	JGE  sum; \
	VMOVUPS (DI)(AX*4), Y1; \
	VMULPS (SI)(AX*4), Y1, Y1; \
	VADDPS Y1, Y0, Y0; \
	ADDQ $8, AX; \
	JMP  eights; \
sum: \
	VEXTRACTF128 $1, Y0, X1; \
	VADDPS X1, X0, X0; \
	VMOVHLPS X0, X0, X1; \
	VADDPS X1, X0, X0; \
	VMOVSHDUP X0, X1; \
	VADDSS X1, X0, X0

// func dotAVX2(u, v *float32, n int) float32
TEXT ·dotAVX2(SB), NOSPLIT, $0-28
	MOVQ u+0(FP), DI
	MOVQ v+8(FP), SI
	MOVQ n+16(FP), DX
	DOT(loop, eights, sum)
	VMOVSS X0, ret+24(FP)
	VZEROUPPER
	RET

#define UPDATE(at, U, V, P, Q) \
	VMOVUPS at(DI)(AX*4), U; \
	VMOVUPS at(SI)(AX*4), V; \
	VMULPS U, Y15, P; \
	VMULPS V, Y14, Q; \
	VADDPS Q, P, P; \
	VMULPS V, Y15, V; \
	VMULPS U, Y14, U; \
	VADDPS U, V, V; \
	VMOVUPS P, at(DI)(AX*4); \
	VMOVUPS V, at(SI)(AX*4)

// func stepAVX2(u, v *float32, n int, target, rate, keep float32) (e float32)
TEXT ·stepAVX2(SB), NOSPLIT, $0-44
	MOVQ u+0(FP), DI
	MOVQ v+8(FP), SI
	MOVQ n+16(FP), DX
	DOT(loop, eights, sum)
	VMOVSS target+24(FP), X1
	VSUBSS X0, X1, X1
	VMOVSS X1, e+40(FP)
	VMULSS rate+28(FP), X1, X1
	VBROADCASTSS X1, Y14
	VBROADCASTSS keep+32(FP), Y15
	XORQ AX, AX

thirtyTwo:
	CMPQ AX, BX
	JGE  rest
	UPDATE(0, Y0, Y1, Y2, Y3)
	UPDATE(32, Y4, Y5, Y6, Y7)
	UPDATE(64, Y8, Y9, Y10, Y11)
	UPDATE(96, Y0, Y1, Y2, Y3)
	ADDQ $32, AX
	JMP  thirtyTwo

rest:
	CMPQ AX, DX
	JGE  done
	UPDATE(0, Y0, Y1, Y2, Y3)
	ADDQ $8, AX
	JMP  rest

done:
	VZEROUPPER
	RET
