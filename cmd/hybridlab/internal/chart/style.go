package chart

import _ "embed"

// CSS is the style of all charts, for the document that they are in. Colours follow prefers-color-scheme.
//
//go:embed chart.css
var CSS string
