#include "textflag.h"

// func prefetch(at *unsafe.Pointer, n, lines int)
TEXT ·prefetch(SB), NOSPLIT, $0-24
	MOVQ at+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ lines+16(FP), DX

address:
	SUBQ $1, CX
	JLT  done
	MOVQ (SI), AX
	ADDQ $8, SI
	MOVQ DX, BX

line:
	PREFETCHT0 (AX)
	ADDQ $64, AX
	SUBQ $1, BX
	JGT  line
	JMP  address

done:
	RET
