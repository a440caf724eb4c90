#!/usr/bin/env bash
# What the death of servers costs in iterations, on the problems of Qiao, Aragam, Zhang and Xing, "Fault Tolerance in
# Iterative-Convergent Machine Learning" (ICML 2019): SCAR's partial recovery and its prioritised checkpoints beside
# full recovery, with equal budgets.
#
#   studies/scar.sh [--quick]      what is there already is not done again; RUNS=runs/scar, PERDURE=bin/perdure
#
# The data: perdure data fetch mnist, movielens-100k and reuters; CoverType and Jester as docs/guide/workloads.md says,
# in data/covtype and data/jester1.csv.gz. With --quick all is small, made up or embedded, and no figure means anything.
set -euo pipefail
perdure=${PERDURE:-bin/perdure} quick=${1:-}
runs=${RUNS:-runs/scar}${quick:+-quick}
job=(--workers 2 --servers 4 --shards 16)
full=(checkpoint:16 scar:16,1 scar:16,1/{2,4,8},priority scar:16,1/{4,8},round scar:16,1/8,random)
some=(checkpoint:16 scar:16,1 scar:16,1/8,priority scar:16,1/8,round)
parts=(1/4 1/2 3/4) trials=(--twins 4 --trials 5) repeat=8
if [ -n "$quick" ]; then
	full=(checkpoint:8 scar:8,1 scar:8,1/4,priority) some=(checkpoint:8 scar:8,1/4,priority) parts=(1/2)
	trials=(--twins 1 --trials 2) repeat=1
fi

# try NAME STRATEGIES PARTS FLAG… -- WORKLOAD FLAG…
try() {
	local name=$1 flags=() s
	local -n strategies=$2 lost=$3
	shift 3
	for s in "${strategies[@]}"; do flags+=(--recovery "$s"); done
	for s in "${lost[@]}"; do flags+=(--lost "$s"); done
	if [ -e "$runs/$name/costs.json" ]; then echo "$name is done already"; return; fi
	echo "== $name"
	"$perdure" study losses "${flags[@]}" "${trials[@]}" --repeat "$repeat" --out "$runs/$name" "$@" ||
		failed="$failed $name"
}
failed=
trap '[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }' EXIT
half=(1/2)
if [ -n "$quick" ]; then
	try quadratic full parts -- quadratic "${job[@]}" --clocks 20
	try softmax some half --sample 200 -- softmax "${job[@]}" --clocks 12 --batch 100
	try als some half -- mf --solver als "${job[@]}" --data synthetic:0.001 --rank 4 --clock-fraction 0.25 --clocks 16
	try lda some half -- lda "${job[@]}" --data synthetic:100 --topics 5 --clock-fraction 1 --clocks 10
	exit
fi
try quadratic full parts -- quadratic "${job[@]}" --lr 1 --clocks 100
try covtype full parts -- softmax "${job[@]}" --data data/covtype --clocks 100 --batch 500
try mnist full parts -- softmax "${job[@]}" --data data/mnist --clocks 100 --batch 500
try als-movielens full parts -- mf --solver als "${job[@]}" --data data/movielens-100k/ml-100k.inter --rank 10 \
	--clock-fraction 1 --clocks 80
try als-jester some half -- mf --solver als "${job[@]}" --data data/jester1.csv.gz --rank 5 --clock-fraction 1 \
	--clocks 60
try lda-reuters some half -- lda "${job[@]}" --data data/reuters --topics 20 --clock-fraction 1 --clocks 50
try lda-reuters-rebuild some half -- lda "${job[@]}" --data data/reuters --topics 20 --clock-fraction 1 --clocks 50 \
	--rebuild
try cnn-row some half --sample 200 -- cnn "${job[@]}" --data data/mnist --clocks 100 --batch 64 --rule adam --lr 0.001
try cnn-layer some half --sample 200 -- cnn "${job[@]}" --partition layer --data data/mnist --clocks 100 --batch 64 \
	--rule adam --lr 0.001
