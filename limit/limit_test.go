package limit_test

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

const day = 24 * time.Hour

func TestConstructors(t *testing.T) {
	for _, tt := range []struct{ got, want limit.Limit }{
		{limit.PerSecond(5), limit.Limit{Rate: 5, Period: time.Second, Burst: 5}},
		{limit.PerMinute(5), limit.Limit{Rate: 5, Period: time.Minute, Burst: 5}},
		{limit.PerHour(5), limit.Limit{Rate: 5, Period: time.Hour, Burst: 5}},
		{limit.PerDay(5), limit.Limit{Rate: 5, Period: day, Burst: 5}},
		{limit.Every(2 * time.Second), limit.Limit{Rate: 1, Period: 2 * time.Second, Burst: 1}},
		{limit.PerSecond(5).WithBurst(9), limit.Limit{Rate: 5, Period: time.Second, Burst: 9}},
	} {
		if tt.got != tt.want {
			t.Errorf("%+v, want %+v", tt.got, tt.want)
		}
	}
}

func TestRATE03_ErrorsNameTheField(t *testing.T) {
	for _, tt := range []struct {
		lim  limit.Limit
		want string // "" for a valid limit
	}{
		{limit.Limit{}, "zero Limit"},
		{limit.PerSecond(0), "Rate 0"},
		{limit.PerSecond(-1), "Rate -1"},
		{limit.Limit{Rate: 1, Burst: 1}, "Period 0s"},
		{limit.Every(-time.Second), "Period -1s"},
		{limit.Every(time.Nanosecond), "Period 1ns"},
		{limit.Every(1500 * time.Nanosecond), "Period 1.5µs"},
		{limit.PerSecond(1).WithBurst(0), "Burst 0"},
		{limit.PerSecond(1).WithBurst(-1), "Burst -1"},
		{limit.PerHour(1).WithBurst(math.MaxInt32), "Burst 2147483647"},
		{limit.PerDay(1).WithBurst(106_752), "Burst 106752"},
		{limit.Every(math.MaxInt64 / 1000 * 1000), "Burst 1 is too large"},
		{limit.PerSecond(math.MaxInt).WithBurst(1), largest},
		{limit.Unlimited().WithBurst(1), "Rate 0"},
		{limit.Limit{Period: 3}, "Rate 0"},

		{limit.PerSecond(1), ""},
		{limit.Every(time.Microsecond), ""},
		{limit.PerDay(1).WithBurst(104_250), ""},
		{limit.PerDay(1_000_000), ""},
		{limit.PerDay(999_983), ""},
		{limit.PerSecond(1_000_000_000), ""},
		{limit.PerHour(7).WithBurst(10_000_000), ""},
		{limit.Unlimited(), ""},
		{limit.Blocked(), ""},
	} {
		check(t, "Validate", tt.lim, tt.lim.Validate(), tt.want)
	}
}

// largest is what Validate says of a rate of math.MaxInt: it is too much only where an int has 64 bits.
var largest = map[bool]string{true: "is too large", false: ""}[strconv.IntSize == 64]

func check(t *testing.T, name string, lim limit.Limit, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s of %+v: %v, want nil", name, lim, err)
	case want != "" && (!errors.Is(err, limit.ErrInvalid) || !strings.Contains(err.Error(), want)):
		t.Errorf("%s of %+v: %v, want ErrInvalid with %q", name, lim, err, want)
	}
}

func TestValidateWindow(t *testing.T) {
	for _, tt := range []struct {
		lim             limit.Limit
		window, counter string
	}{
		{limit.PerSecond(5), "", ""},
		{limit.Unlimited(), "", ""},
		{limit.Blocked(), "", ""},
		{limit.Every(time.Millisecond), "", ""},
		{limit.Limit{}, "zero Limit", "zero Limit"},
		{limit.Every(time.Microsecond), "Period 1µs", "Period 1µs"},
		{limit.Every(1500 * time.Microsecond), "Period 1.5ms", "Period 1.5ms"},
		{limit.PerSecond(5).WithBurst(6), "Burst 6", "Burst 6"},
		{limit.PerSecond(5).WithBurst(4), "Burst 4", "Burst 4"},
		{limit.PerDay(104_249_991), "", ""}, // 2^53 / 86,400,000 ms
		{limit.PerDay(104_249_992), "", "Rate 104249992"},
		{limit.Limit{Rate: 1 << 30, Period: 1 << 23 * time.Millisecond, Burst: 1 << 30}, "", ""},
		{limit.Limit{Rate: 1 << 30, Period: (1<<23 + 1) * time.Millisecond, Burst: 1 << 30}, "", "Rate 1073741824"},
	} {
		check(t, "ValidateWindow", tt.lim, tt.lim.ValidateWindow(), tt.window)
		check(t, "ValidateCounter", tt.lim, tt.lim.ValidateCounter(), tt.counter)
	}
}

func TestCounterUnit(t *testing.T) {
	for _, tt := range []struct{ period, want time.Duration }{
		{time.Millisecond, time.Microsecond},
		{999 * time.Millisecond, time.Microsecond},
		{time.Second, time.Millisecond},
		{day, time.Millisecond},
	} {
		if got := limit.Every(tt.period).CounterUnit(); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.period, got, tt.want)
		}
	}
}

func TestRATE10_ResetAfterOfEveryMix(t *testing.T) {
	const years = 365 * day
	for _, rate := range []int{1, 120, 1e6, 1e9} {
		for _, period := range []time.Duration{0, 1, time.Second, day, 10 * years} {
			for _, burst := range []int{1, 1e9} {
				l := limit.Limit{Rate: rate, Period: period, Burst: burst}
				if err := l.Validate(); err != nil {
					if !errors.Is(err, limit.ErrInvalid) {
						t.Errorf("%+v: %v, want ErrInvalid", l, err)
					}
					continue
				}
				if got := l.ResetAfter(0); got <= 0 || got == limit.Never {
					t.Errorf("%v: ResetAfter %v, want above 0 and below Never", l, got)
				}
			}
		}
	}
}

func TestResetAfter(t *testing.T) {
	for _, tt := range []struct {
		lim       limit.Limit
		remaining int
		want      time.Duration
	}{
		{limit.PerSecond(10), 10, 0},
		{limit.PerSecond(10), 11, 0},
		{limit.PerSecond(10), 9, 100 * time.Millisecond},
		{limit.PerSecond(10), 0, time.Second},
		{limit.PerSecond(3), 2, 333334 * time.Microsecond},
		{limit.PerSecond(3), 0, time.Second},
		{limit.PerSecond(1_000_000_000), 999_999_999, time.Microsecond},
		{limit.Every(285 * 365 * day), 0, 285 * 365 * day},
		{limit.Unlimited(), 0, 0},
		{limit.Blocked(), 0, 0},
		{limit.Limit{}, 0, 0},
	} {
		if got := tt.lim.ResetAfter(tt.remaining); got != tt.want {
			t.Errorf("%v with %d left: %v, want %v", tt.lim, tt.remaining, got, tt.want)
		}
	}
}

func TestMicros(t *testing.T) {
	const most = math.MaxInt64 / 1000
	for _, tt := range []struct {
		us   int64
		want time.Duration
	}{
		{0, 0},
		{1, time.Microsecond},
		{most, most * time.Microsecond},
		{most + 1, limit.Never},
		{math.MaxInt64, limit.Never},
	} {
		if got := limit.Micros(tt.us); got != tt.want {
			t.Errorf("Micros(%d) = %d, want %d", tt.us, got, tt.want)
		}
	}
}

// texts are limits and their shortest text.
var texts = []struct {
	text string
	lim  limit.Limit
}{
	{"unlimited", limit.Unlimited()},
	{"blocked", limit.Blocked()},
	{"100/s", limit.PerSecond(100)},
	{"100/m", limit.PerMinute(100)},
	{"100/h", limit.PerHour(100)},
	{"100/d", limit.PerDay(100)},
	{"1/2d", limit.Every(2 * day)},
	{"1/36h", limit.Every(36 * time.Hour)},
	{"1/90s", limit.Every(90 * time.Second)},
	{"1/ms", limit.Every(time.Millisecond)},
	{"1/us", limit.Every(time.Microsecond)},
	{"1/1001us", limit.Every(1001 * time.Microsecond)},
	{"1/3000000001us", limit.Every(3_000_000_001 * time.Microsecond)},
	{"5/10m burst 20", limit.Limit{Rate: 5, Period: 10 * time.Minute, Burst: 20}},
	{"2/s burst 1", limit.PerSecond(2).WithBurst(1)},
}

func TestParseAndString(t *testing.T) {
	for _, tt := range texts {
		if got, err := limit.Parse(tt.text); got != tt.lim || err != nil {
			t.Errorf("Parse(%q) = %+v, %v; want %+v", tt.text, got, err, tt.lim)
		}
		if got := tt.lim.String(); got != tt.text {
			t.Errorf("%+v: %q, want %q", tt.lim, got, tt.text)
		}
	}
	for _, tt := range []struct {
		text string
		lim  limit.Limit
	}{
		{"60/60s", limit.PerMinute(60)},
		{"0100/s burst 0100", limit.PerSecond(100)},
		{"1/24h", limit.PerDay(1)},
	} {
		want := limit.Limit{Rate: tt.lim.Rate, Period: tt.lim.Period, Burst: tt.lim.Burst}
		if got, err := limit.Parse(tt.text); got != want || err != nil {
			t.Errorf("Parse(%q) = %+v, %v; want %+v", tt.text, got, err, want)
		}
	}
}

// malformed is what Parse refuses.
var malformed = []string{
	"", " ", "/", "s", "100", "100/", "/s", "100 /s", "100/ s", " 100/s", "100/s ", "+1/s", "-1/s", "1.5/s", "1e3/s", "1_000/s",
	"0x10/s", "1/0s", "0/s", "1/-1s", "1/+1s", "1/1.5s", "1/ns", "1/S", "1/sec", "1/w", "1/1s1s", "1/s burst", "1/s burst ",
	"1/s burst 0", "1/s burst -1", "1/s burst 1 burst 1", "1/sburst 1", "1/s  burst 1", "Unlimited", "blocked ", "unlimited burst 1",
	"99999999999999999999/s", "1/99999999999999999999s", "1/200000d", "1/26687998d", "1/106751d", "1/s burst 99999999999999999999", "1/h burst 2147483647",
	"1/\xff", "１/s",
}

func TestParseRefuses(t *testing.T) {
	for _, text := range malformed {
		if got, err := limit.Parse(text); !errors.Is(err, limit.ErrInvalid) || got != (limit.Limit{}) {
			t.Errorf("Parse(%q) = %+v, %v; want the zero Limit, ErrInvalid", text, got, err)
		}
	}
	_, err := limit.Parse("1/" + strings.Repeat("x", 1000))
	if err == nil || len(err.Error()) > 300 {
		t.Errorf("the error for a long text is %v, want a short one", err)
	}
}

func TestStringOfInvalid(t *testing.T) {
	for _, lim := range []limit.Limit{{}, limit.PerSecond(-1), limit.Every(1)} {
		text := lim.String()
		if !strings.HasPrefix(text, "invalid limit") {
			t.Errorf("%#v: %q, want it to say that it is invalid", lim, text)
		}
		if _, err := limit.Parse(text); err == nil {
			t.Errorf("%q parses", text)
		}
	}
}

// checkInverse goes from a valid limit to its text and back.
func checkInverse(t *testing.T, lim limit.Limit) {
	t.Helper()
	if got, err := limit.Parse(lim.String()); got != lim || err != nil {
		t.Errorf("%#v is %q, which parses as %#v, %v", lim, lim, got, err)
	}
}

func TestParseIsInverseOfString(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	valid := 0
	for range 20_000 {
		lim := limit.Limit{
			Rate:   1 + rnd.IntN(1<<rnd.IntN(30)),
			Period: time.Duration(1+rnd.Int64N(1<<rnd.IntN(50))) * time.Microsecond,
		}
		if rnd.IntN(2) == 0 {
			lim.Period = time.Duration(1+rnd.Int64N(90)) * []time.Duration{day, time.Hour, time.Minute, time.Second, time.Millisecond}[rnd.IntN(5)]
		}
		lim.Burst = lim.Rate
		if rnd.IntN(2) == 0 {
			lim.Burst = 1 + rnd.IntN(1<<rnd.IntN(30))
		}
		if lim.Validate() == nil {
			valid++
			checkInverse(t, lim)
		}
	}
	if valid < 5000 {
		t.Errorf("only %d valid limits, want more to look at", valid)
	}
}

func FuzzParse(f *testing.F) {
	for _, tt := range texts {
		f.Add(tt.text, tt.lim.Rate, int64(tt.lim.Period), tt.lim.Burst)
	}
	for _, text := range malformed {
		f.Add(text, 1, int64(time.Second), 2)
	}
	f.Fuzz(func(t *testing.T, text string, rate int, period int64, burst int) {
		lim, err := limit.Parse(text)
		if err == nil {
			if err := lim.Validate(); err != nil {
				t.Errorf("Parse(%q): %v", text, err)
			}
			checkInverse(t, lim)
		} else if !errors.Is(err, limit.ErrInvalid) {
			t.Errorf("Parse(%q): %v, want ErrInvalid", text, err)
		}
		if lim := (limit.Limit{Rate: rate, Period: time.Duration(period), Burst: burst}); lim.Validate() == nil {
			checkInverse(t, lim)
		}
	})
}

func TestJSON(t *testing.T) {
	type config struct{ Limit limit.Limit }
	for _, tt := range texts {
		want := `{"Limit":"` + tt.text + `"}`
		if got, err := json.Marshal(config{tt.lim}); string(got) != want || err != nil {
			t.Errorf("Marshal(%v) = %s, %v; want %s", tt.lim, got, err, want)
		}
		var c config
		if err := json.Unmarshal([]byte(want), &c); c.Limit != tt.lim || err != nil {
			t.Errorf("Unmarshal(%s) = %v, %v; want %v", want, c.Limit, err, tt.lim)
		}
	}
	if got, err := json.Marshal(config{}); !errors.Is(err, limit.ErrInvalid) {
		t.Errorf("Marshal of the zero Limit = %s, %v; want ErrInvalid", got, err)
	}
	c := config{limit.PerSecond(1)}
	if err := json.Unmarshal([]byte(`{"Limit":"1/0s"}`), &c); !errors.Is(err, limit.ErrInvalid) || c.Limit != limit.PerSecond(1) {
		t.Errorf("Unmarshal of a bad limit: %v, %v; want ErrInvalid and no change", c.Limit, err)
	}
}
