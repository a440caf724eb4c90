#include "textflag.h"

// tilePlain on eight values at a time: the same operations in the same order,
// none fused (no VFMADD).
//
// Registers: Y0 to Y7 the sums, two for each row; Y8 and Y9 a row of the panel of
// B; Y10 to Y13 a value of A, and products. CX the depth that is left, SI and DI
// the panels of A and B, R8 to R11 the rows of C.

// ROW adds one row's products.
#define ROW(at, X, P, S0, S1) \
	VBROADCASTSS at(SI), X; \
	VMULPS X, Y8, P; \
	VMULPS X, Y9, X; \
	VADDPS P, S0, S0; \
	VADDPS X, S1, S1

// func tileAVX2(depth int, a, b, c *float32, step int)
TEXT ·tileAVX2(SB), NOSPLIT, $0-40
	MOVQ depth+0(FP), CX
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DI
	MOVQ c+24(FP), R8
	MOVQ step+32(FP), DX
	LEAQ (R8)(DX*4), R9
	LEAQ (R9)(DX*4), R10
	LEAQ (R10)(DX*4), R11
	VMOVUPS (R8), Y0
	VMOVUPS 32(R8), Y1
	VMOVUPS (R9), Y2
	VMOVUPS 32(R9), Y3
	VMOVUPS (R10), Y4
	VMOVUPS 32(R10), Y5
	VMOVUPS (R11), Y6
	VMOVUPS 32(R11), Y7

loop:
	VMOVUPS (DI), Y8
	VMOVUPS 32(DI), Y9
	ROW(0, Y10, Y11, Y0, Y1)
	ROW(4, Y12, Y13, Y2, Y3)
	ROW(8, Y14, Y15, Y4, Y5)
	ROW(12, Y10, Y11, Y6, Y7)
	ADDQ $16, SI
	ADDQ $64, DI
	DECQ CX
	JNZ  loop

	VMOVUPS Y0, (R8)
	VMOVUPS Y1, 32(R8)
	VMOVUPS Y2, (R9)
	VMOVUPS Y3, 32(R9)
	VMOVUPS Y4, (R10)
	VMOVUPS Y5, 32(R10)
	VMOVUPS Y6, (R11)
	VMOVUPS Y7, 32(R11)
	VZEROUPPER
	RET
