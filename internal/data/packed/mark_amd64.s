#include "textflag.h"

// What VPACKSSDW and VPACKSSWB have put in the order of halves comes back into the order of the values.
DATA order<>+0(SB)/4, $0
DATA order<>+4(SB)/4, $4
DATA order<>+8(SB)/4, $1
DATA order<>+12(SB)/4, $5
DATA order<>+16(SB)/4, $2
DATA order<>+20(SB)/4, $6
DATA order<>+24(SB)/4, $3
DATA order<>+28(SB)/4, $7
GLOBL order<>(SB), RODATA|NOPTR, $32

// ZEROS sets the low bits of a register: of 32 values from an offset on, those that are +0.
#define ZEROS(at, to) \
	VPCMPEQD at(SI), Y0, Y1; \
	VPCMPEQD at+32(SI), Y0, Y2; \
	VPCMPEQD at+64(SI), Y0, Y3; \
	VPCMPEQD at+96(SI), Y0, Y4; \
	VPACKSSDW Y2, Y1, Y1; \
	VPACKSSDW Y4, Y3, Y3; \
	VPACKSSWB Y3, Y1, Y1; \
	VPERMD Y1, Y5, Y1; \
	VPMOVMSKB Y1, to

// func markAVX2(dst []uint64, values []float32)
TEXT ·markAVX2(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), DX
	MOVQ values_base+24(FP), SI
	VPXOR Y0, Y0, Y0
	VMOVDQU order<>(SB), Y5
	TESTQ DX, DX
	JZ done

loop:
	ZEROS(0, AX)
	ZEROS(128, BX)
	SHLQ $32, BX
	ORQ BX, AX
	NOTQ AX
	MOVQ AX, (DI)
	ADDQ $256, SI
	ADDQ $8, DI
	DECQ DX
	JNZ loop

done:
	VZEROUPPER
	RET
