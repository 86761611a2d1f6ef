//go:build !race

package tally_test

const underRace = false
