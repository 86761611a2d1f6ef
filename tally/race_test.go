//go:build race

package tally_test

// underRace says that the race detector makes everything several times slower.
const underRace = true
