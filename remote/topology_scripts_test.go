package remote_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What a script may use of Lua and of Redis: all of it is in Lua 5.1 to 5.4 and in every version and relative of Redis
// that runs scripts at all. Not on the list, for example, are redis.replicate_commands and redis.log, which are deprecated
// or not everywhere, setresp, unpack alone, table.getn, and the libraries struct, bit, cjson and cmsgpack.
var portable = strings.Fields(`
	redis.call redis.pcall redis.error_reply KEYS ARGV
	tonumber ipairs table.sort table.unpack unpack
	math.ceil math.floor math.fmod math.max math.min
	string.format string.match string.sub`)

var (
	luaText    = regexp.MustCompile(`(?s)--[^\n]*|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"`)
	luaName    = regexp.MustCompile(`\.{0,2}[A-Za-z_][A-Za-z_0-9]*(?:\.[A-Za-z_][A-Za-z_0-9]*)*`)
	luaLocals  = regexp.MustCompile(`\blocal\s+(?:function\s+)?([\w\s,]+)`)
	luaParams  = regexp.MustCompile(`\bfunction\s*\w*\s*\(([\w\s,]*)\)`)
	luaLoop    = regexp.MustCompile(`\bfor\s+([\w\s,]+?)\s*(?:=|\bin\b)`)
	luaCall    = regexp.MustCompile(`(?:redis\.p?call|\bsend)\(\s*([^,)]*)\s*(?:,\s*([^,)]*))?`)
	luaKeyword = strings.Fields("and break do else elseif end false for function if in local nil not or repeat return then true until while")
)

// globals are the names of a script that are not its own.
func globals(source string) []string {
	code := luaText.ReplaceAllString(source, "''")
	own := map[string]bool{}
	for _, re := range []*regexp.Regexp{luaLocals, luaParams, luaLoop} {
		for _, m := range re.FindAllStringSubmatch(code, -1) {
			for name := range strings.SplitSeq(m[1], ",") {
				// The next statement may follow a local without a value.
				if f := strings.Fields(name); len(f) > 0 {
					own[f[0]] = true
				}
			}
		}
	}
	var names []string
	for _, name := range luaName.FindAllString(code, -1) {
		name = strings.TrimPrefix(name, "..") // concatenation
		first, _, _ := strings.Cut(name, ".")
		if first != "" && !slices.Contains(luaKeyword, name) && !slices.Contains(names, name) && (!own[first] || name == "unpack") {
			names = append(names, name)
		}
	}
	return names
}

func TestScriptsArePortable(t *testing.T) {
	files, err := filepath.Glob("*.lua")
	if err != nil || len(files) < 6 {
		t.Fatalf("scripts %q, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range problems(string(text)) {
			t.Errorf("%s: %s", file, problem)
		}
	}
}

// problems are what would not run everywhere.
func problems(source string) []string {
	var all []string
	if strings.HasPrefix(source, "#!") {
		all = append(all, "a shebang changes what is checked, and older servers do not know it")
	}
	for _, name := range globals(source) {
		if !slices.Contains(portable, name) {
			all = append(all, "uses "+name)
		}
	}
	code := regexp.MustCompile(`--[^\n]*`).ReplaceAllString(source, "")
	if strings.Contains(code, "unpack(") && !strings.Contains(code, "local unpack = table.unpack or unpack") {
		all = append(all, "uses unpack by the name of only one version of Lua")
	}
	// Every command is on the declared key, by the first argument, and TIME has none.
	for _, m := range luaCall.FindAllStringSubmatch(code, -1) {
		command, key := strings.TrimSpace(m[1]), strings.TrimSpace(m[2])
		switch {
		case command == "command" && key == "KEYS[1]": // of the function send
		case command == "command" && key == "list" || strings.HasPrefix(m[0], "send") && strings.HasPrefix(command, "'"):
		case command == "'TIME'" && key == "":
		case strings.HasPrefix(command, "'") && key == "KEYS[1]":
		default:
			all = append(all, "touches another key than KEYS[1]: "+m[0])
		}
	}
	for _, m := range regexp.MustCompile(`KEYS\s*\[([^\]]*)\]`).FindAllStringSubmatch(code, -1) {
		if m[1] != "1" {
			all = append(all, "touches another key than KEYS[1]: "+m[0])
		}
	}
	return all
}

// The test above would notice.
func TestScriptsArePortable_findsProblems(t *testing.T) {
	for _, source := range []string{
		"#!lua flags=no-writes\nreturn 1",
		"redis.replicate_commands()",
		"redis.setresp(3)",
		"local x = cjson.encode({1})",
		"local x = struct.pack('i', 1)",
		"return bit.band(1, 2)",
		"return cmsgpack.pack(1)",
		"local t = {} return table.getn(t)",
		"return unpack({1})",
		"x = 1",
		"local a = 1\nreturn a .. b",
		"math.randomseed(1)",
		"redis.call('GET', ARGV[1])",
		"redis.call('GET', KEYS[1] .. 'x')",
		"redis.call('GET', KEYS[2])",
		"for i = 1, #KEYS do redis.call('DEL', KEYS[i]) end",
		"local k = 'x' redis.call('DEL', k)",
	} {
		if len(problems(source)) == 0 {
			t.Errorf("finds nothing in %q", source)
		}
	}
	for _, source := range []string{
		"local unpack = table.unpack or unpack\nlocal function f(a, b) return a + b end\nfor i, v in ipairs(KEYS) do f(i, v) end\nreturn unpack({1})",
		"-- math.random() in a comment\nreturn redis.call('GET', KEYS[1]) .. 'math.random()'",
	} {
		if got := problems(source); len(got) > 0 {
			t.Errorf("finds %q in %q", got, source)
		}
	}
}
