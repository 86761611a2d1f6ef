// Package chart draws values over time as SVG. It is pure: the same Chart gives the same text.
package chart

import "math"

// Chart is what is drawn. The zero value is a chart that says that there is no data yet.
type Chart struct {
	Name    string               // letters, digits and hyphens; unique in a document, where ids begin with it
	Title   string               //
	About   string               // a sentence about what is shown, for those who do not see it
	Unit    string               // of the values
	Label   func(float64) string // writes a value at the axis; nil stands for Number
	Log     bool                 // an axis of decades; values that are not positive are left out
	Stacked bool                 // areas on top of each other, in the order of Series
	End     float64              // seconds that are shown at least
	Top     float64              // value that is shown at least
	Series  []Series             //
	Spans   []Span               // times at which something was wrong
	Empty   string               // said when there is nothing to draw; "" stands for "no data yet"
}

// Series is one line, or one area of a stacked chart.
type Series struct {
	Name   string
	Color  int  // 0 to Colors-1, others are wrapped around
	Dashed bool // for what is only there to compare with; a stacked chart has none
	Step   bool // a value holds since the point before it, or since 0; else points are joined
	Points []Point
}

// Point is a value at a time. A value that is not a number is a gap.
type Point struct {
	X float64 // seconds
	Y float64
}

// Span is a time that is shaded.
type Span struct {
	From, To float64 // seconds
	Label    string
}

// Colors is how many colours there are.
const Colors = 8

// drawn says whether a value has a place in the chart.
func (c Chart) drawn(y float64) bool {
	return !math.IsNaN(y) && !math.IsInf(y, 0) && (!c.Log || y > 0)
}

// stacked returns the series with each on top of those before it. Gaps count as nothing.
func (c Chart) stacked() []Series {
	if !c.Stacked {
		return c.Series
	}
	under := map[float64]float64{} // by time
	stack := make([]Series, len(c.Series))
	for i, s := range c.Series {
		stack[i] = s
		stack[i].Points = make([]Point, len(s.Points))
		for k, p := range s.Points {
			if c.drawn(p.Y) {
				under[p.X] += p.Y
			}
			stack[i].Points[k] = Point{p.X, under[p.X]}
		}
	}
	return stack
}

// extent returns the least and the greatest value of series, and the last time. ok is false if there is none.
func (c Chart) extent(series []Series) (least, most, end float64, ok bool) {
	least, most, end = math.Inf(1), math.Inf(-1), c.End
	for _, s := range series {
		for _, p := range s.Points {
			if c.drawn(p.Y) {
				least, most, ok = min(least, p.Y), max(most, p.Y), true
				end = max(end, p.X)
			}
		}
	}
	return least, most, end, ok && end > 0
}

// Reach returns the value and the time that the chart shows at least, so that others can be made to show as much.
func (c Chart) Reach() (top, end float64) {
	_, most, end, _ := c.extent(c.stacked())
	return max(c.Top, most), end
}
