package chart

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Sizes in pixels. The width is the caller's; the height follows from what is in the chart.
const (
	minWidth, maxWidth = 260, 1600

	marginLeft  = 70 // room for the numbers of the axis and their unit
	marginRight = 18 // room for half of the last number below
	titleLine   = 24
	legendLine  = 18
	faultLine   = 22 // room above the values for what was wrong
	plotHeight  = 150
	timeLine    = 26
	swatch      = 18 // of the legend
	legendGap   = 16

	letter      = 7.2 // rough width of a letter of 12 pixels, on the safe side
	titleLetter = 8.4 // of one of the title
)

// SVG draws c as an element of an HTML document that has CSS among its styles. The width is in pixels and kept between
// 260 and 1600; letters are 12 pixels high if the element is shown as wide as that.
func (c Chart) SVG(width int) string { return c.draw(width, false) }

// File draws c as a file of its own, which brings its colours, for the light and for the dark.
func (c Chart) File(width int) string { return c.draw(width, true) }

// canvas is a drawing that is being made.
type canvas struct {
	strings.Builder
	Chart
	series                []Series // as they are drawn
	left, top             float64  // of the plot
	width, height         float64  // of the plot
	time, value           axis
	legend                []entry // of each series
	fullWidth, fullHeight int
}

// entry is what the legend says of a series, and where.
type entry struct {
	x, y float64
	name string
}

func (c Chart) draw(width int, alone bool) string {
	width = min(max(width, minWidth), maxWidth)
	d := canvas{Chart: c, series: c.stacked(), fullWidth: width, left: marginLeft, height: plotHeight}
	d.width = float64(width - marginLeft - marginRight)
	d.placeLegend()
	d.fullHeight = int(d.top) + plotHeight + timeLine
	d.open(alone)
	d.writeLegend()
	if d.scale() {
		d.writeSpans()
		d.writeAxes()
		d.writeSeries()
	} else {
		d.writeEmpty()
	}
	d.WriteString("</svg>\n")
	return d.String()
}

// placeLegend breaks the legend into lines, and puts the plot below them.
func (d *canvas) placeLegend() {
	x, y := float64(swatch), float64(titleLine+legendLine)
	for _, s := range d.Series {
		name := cut(s.Name, int(float64(d.fullWidth-3*swatch-6)/letter))
		wide := swatch + 6 + letter*float64(utf8.RuneCountInString(name))
		if x > swatch && x+wide > float64(d.fullWidth) {
			x, y = swatch, y+legendLine
		}
		d.legend = append(d.legend, entry{x, y, name})
		x += wide + legendGap
	}
	d.top = y + faultLine
}

// scale makes the axes. It returns false if there is nothing to draw.
func (d *canvas) scale() bool {
	least, most, end, ok := d.extent(d.series)
	if !ok {
		return false
	}
	d.time = linear(end, max(2, int(d.width/70)), false)
	if d.Log {
		d.value = decades(least, max(most, d.Top))
	} else {
		d.value = linear(max(most, d.Top), 5, true)
	}
	return true
}

func (d *canvas) x(t float64) float64 { return d.left + d.width*d.time.at(t) }
func (d *canvas) y(v float64) float64 { return d.top + d.height*(1-d.value.at(v)) }

// label writes a value as the axis does.
func (d *canvas) label(v float64) string {
	if d.Label != nil {
		return d.Label(v)
	}
	return Number(v)
}

func (d *canvas) open(alone bool) {
	name := escape(d.Name)
	d.printf(`<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img"`,
		d.fullWidth, d.fullHeight)
	d.printf(" aria-labelledby=\"%[1]s-title %[1]s-desc\">\n<title id=\"%[1]s-title\">%[2]s</title>\n<desc id=\"%[1]s-desc\">%[3]s</desc>\n",
		name, escape(d.Title), escape(d.describe()))
	if alone {
		d.printf("<style>\n%s</style>\n", CSS)
		d.printf("<rect class=\"paper\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n", d.fullWidth, d.fullHeight)
	}
	d.text("title", swatch, 18, "", cut(d.Title, int(float64(d.fullWidth-swatch)/titleLetter)))
}

// describe says in words what the chart shows.
func (d *canvas) describe() string {
	said := []string{}
	if d.About != "" {
		said = append(said, d.About)
	}
	if _, _, _, ok := d.extent(d.series); !ok {
		return strings.Join(append(said, d.empty()+"."), " ")
	}
	for _, s := range d.Series {
		if n := len(s.Points); n > 0 && d.drawn(s.Points[n-1].Y) {
			said = append(said, strings.TrimSpace(fmt.Sprintf("%s: last %s %s", s.Name, d.label(s.Points[n-1].Y), d.unit()))+".")
		}
	}
	for _, s := range d.Spans {
		said = append(said, fmt.Sprintf("From %s s to %s s: %s.", digits(s.From), digits(s.To), s.Label))
	}
	return strings.Join(said, " ")
}

// unit is what has to be said behind a value. Nothing, if the label does it.
func (d *canvas) unit() string {
	if d.Label != nil {
		return ""
	}
	return d.Unit
}

func (d *canvas) writeLegend() {
	for i, s := range d.Series {
		at := d.legend[i]
		if d.Stacked {
			d.printf("<rect class=\"area %s\" x=\"%s\" y=\"%s\" width=\"%d\" height=\"10\"/>\n", color(s), px(at.x), px(at.y-9), swatch)
		} else {
			d.printf("<path class=\"line %s\" d=\"M%s %sh%d\"/>\n", d.class(s), px(at.x), px(at.y-4), swatch)
		}
		d.text("legend", at.x+swatch+6, at.y, "", at.name)
	}
}

func (d *canvas) writeSpans() {
	free := 0.0 // where the next label has room
	for _, s := range d.Spans {
		from, to := d.x(s.From), d.x(s.To)
		d.printf("<rect class=\"fault\" x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\"><title>%s</title></rect>\n",
			px(from), px(d.top), px(max(to-from, 1)), px(d.height), escape(s.Label))
		wide := letter * float64(utf8.RuneCountInString(s.Label))
		start := max(0, min(from, d.left+d.width+marginRight-wide))
		if start >= free {
			d.text("cause", start, d.top-6, "", s.Label)
			free = start + wide + 6
		}
	}
}

func (d *canvas) writeAxes() {
	if d.Unit != "" {
		d.printf("<text transform=\"translate(14 %s) rotate(-90)\" text-anchor=\"middle\">%s</text>\n", px(d.top+d.height/2), escape(d.Unit))
	}
	for _, v := range d.value.ticks {
		d.printf("<path class=\"grid\" d=\"M%s %sh%s\"/>\n", px(d.left), px(d.y(v)), px(d.width))
		d.text("", d.left-6, d.y(v)+4, "end", d.label(v))
	}
	for _, t := range d.time.ticks {
		d.printf("<path class=\"axis\" d=\"M%s %sv4\"/>\n", px(d.x(t)), px(d.top+d.height))
		d.text("", d.x(t), d.top+d.height+18, "middle", digits(t)+" s")
	}
	d.printf("<path class=\"axis\" d=\"M%s %sv%sh%s\"/>\n", px(d.left), px(d.top), px(d.height), px(d.width))
}

func (d *canvas) writeSeries() {
	if !d.Stacked {
		for _, s := range d.series {
			if path := d.line(s); path != "" {
				d.printf("<path class=\"line %s\" d=\"%s\"/>\n", d.class(s), path)
			}
		}
		return
	}
	for i, s := range d.series {
		under := d.y(0)
		path := d.line(s)
		if path == "" || d.flat(d.Series[i]) {
			continue
		}
		back := fmt.Sprintf("V%sH%s", px(under), px(d.start(s)))
		if i > 0 {
			back = d.back(d.series[i-1], under)
		}
		d.printf("<path class=\"area %s\" d=\"%s%sZ\"/>\n", color(s), path, back)
	}
}

// flat reports whether s is 0 all the time: its area would be a line on the one below.
func (d *canvas) flat(s Series) bool {
	return !slices.ContainsFunc(s.Points, func(p Point) bool { return d.drawn(p.Y) && p.Y != 0 })
}

// line returns the path of s from left to right, "" if it has no points.
func (d *canvas) line(s Series) string {
	var b strings.Builder
	pen, before := false, 0.0
	for _, p := range s.Points {
		if !d.drawn(p.Y) {
			pen, before = false, p.X
			continue
		}
		switch {
		case !pen && s.Step:
			fmt.Fprintf(&b, "M%s %sH%s", px(d.x(before)), px(d.y(p.Y)), px(d.x(p.X)))
		case !pen:
			fmt.Fprintf(&b, "M%s %sh0", px(d.x(p.X)), px(d.y(p.Y)))
		case s.Step:
			fmt.Fprintf(&b, "V%sH%s", px(d.y(p.Y)), px(d.x(p.X)))
		default:
			fmt.Fprintf(&b, "L%s %s", px(d.x(p.X)), px(d.y(p.Y)))
		}
		pen, before = true, p.X
	}
	return b.String()
}

// start is where the line of s begins.
func (d *canvas) start(s Series) float64 {
	if s.Step {
		return d.x(0)
	}
	return d.x(s.Points[0].X)
}

// back returns the path of s from right to left, for the lower edge of the area on top of it.
func (d *canvas) back(s Series, floor float64) string {
	if len(s.Points) == 0 {
		return fmt.Sprintf("V%s", px(floor))
	}
	var b strings.Builder
	for i := len(s.Points) - 1; i >= 0; i-- {
		p := s.Points[i]
		switch {
		case !s.Step:
			fmt.Fprintf(&b, "L%s %s", px(d.x(p.X)), px(d.y(p.Y)))
		case i == 0:
			fmt.Fprintf(&b, "V%sH%s", px(d.y(p.Y)), px(d.x(0)))
		default:
			fmt.Fprintf(&b, "V%sH%s", px(d.y(p.Y)), px(d.x(s.Points[i-1].X)))
		}
	}
	return b.String()
}

func (d *canvas) empty() string {
	if d.Empty != "" {
		return d.Empty
	}
	return "no data yet"
}

func (d *canvas) writeEmpty() {
	d.printf("<rect class=\"grid\" x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\" rx=\"4\"/>\n",
		px(swatch), px(d.top), px(float64(d.fullWidth-2*swatch)), px(d.height))
	d.text("empty", float64(d.fullWidth)/2, d.top+d.height/2, "middle", d.empty())
}

func (d *canvas) class(s Series) string {
	if s.Dashed {
		return color(s) + " dashed"
	}
	return color(s)
}

func color(s Series) string { return fmt.Sprintf("c%d", ((s.Color%Colors)+Colors)%Colors) }

func (d *canvas) text(class string, x, y float64, anchor, said string) {
	if said == "" {
		return
	}
	d.printf(`<text x="%s" y="%s"`, px(x), px(y))
	if class != "" {
		d.printf(` class="%s"`, class)
	}
	if anchor != "" {
		d.printf(` text-anchor="%s"`, anchor)
	}
	d.printf(">%s</text>\n", escape(said))
}

func (d *canvas) printf(format string, args ...any) { fmt.Fprintf(&d.Builder, format, args...) }

// cut returns s with at most n letters.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// escape makes s text of an HTML or an XML document. Control characters and others that XML has no form for are left out.
func escape(s string) string {
	return html.EscapeString(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError || r == 0xfffe || r == 0xffff {
			return -1
		}
		return r
	}, s))
}

// px writes a length to a tenth of a pixel.
func px(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }
