//go:build !race

package hybrid_test

const underRace = false
