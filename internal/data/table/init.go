package table

import (
	"math"

	"github.com/perdure/perdure"
)

// fillInitial sets a row to its initial values, which depend only on the job's seed, the table's number and the row.
func fillInitial(row []float32, init perdure.Init, seed uint64, id perdure.TableID, r perdure.RowID) {
	switch init.Kind {
	case perdure.InitUniform:
		fillUniform(row, init.Scale, rowSeed(seed, id, r))
	case perdure.InitNormal:
		fillNormal(row, init.Scale, rowSeed(seed, id, r))
	default:
		clear(row)
	}
}

// rowSeed mixes its arguments into the start of a row's random sequence.
func rowSeed(seed uint64, id perdure.TableID, row perdure.RowID) uint64 {
	return mix(mix(seed^goldenGamma) ^ mix(uint64(id)<<48^uint64(row)))
}

// goldenGamma is 2^64 divided by the golden ratio, the increment of SplitMix64.
const goldenGamma = 0x9e3779b97f4a7c15

// mix is the finaliser of SplitMix64.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// unit returns the output of SplitMix64 for a state as a number uniform in (0, 1).
func unit(state uint64) float64 { return (float64(mix(state)>>11) + 0.5) / (1 << 53) }

func fillUniform(row []float32, scale float64, seed uint64) {
	for i := range row {
		seed += goldenGamma
		row[i] = float32(scale * (2*unit(seed) - 1))
	}
}

// fillNormal uses the method of Box and Muller.
func fillNormal(row []float32, scale float64, seed uint64) {
	for i := range row {
		seed += goldenGamma
		u := unit(seed)
		seed += goldenGamma
		v := unit(seed)
		row[i] = float32(scale * math.Sqrt(-2*math.Log(u)) * math.Cos(2*math.Pi*v))
	}
}
