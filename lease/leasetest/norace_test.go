//go:build !race

package leasetest

// underRace says that the race detector makes everything several times slower.
const underRace = false
