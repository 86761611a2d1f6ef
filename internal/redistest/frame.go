package redistest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// readFrame returns the next request or reply, RESP2 or RESP3, byte for byte.
func readFrame(br *bufio.Reader) ([]byte, error) {
	return appendFrame(nil, br)
}

func appendFrame(frame []byte, br *bufio.Reader) ([]byte, error) {
	line, err := br.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	frame = append(frame, line...)
	n := 0
	switch line[0] {
	case '$', '=', '!', '*', '~', '>', '%', '|':
		if n, err = strconv.Atoi(string(bytes.TrimSpace(line[1:]))); err != nil {
			return nil, fmt.Errorf("redistest: frame %q: %w", line, err)
		}
	}
	switch line[0] {
	case '$', '=', '!': // n bytes; -1 is null
		if n >= 0 {
			start := len(frame)
			frame = append(frame, make([]byte, n+2)...)
			if _, err := io.ReadFull(br, frame[start:]); err != nil {
				return nil, err
			}
		}
		return frame, nil
	case '%':
		n *= 2
	case '|': // attributes, and then the value they belong to
		n = 2*n + 1
	}
	for range n {
		if frame, err = appendFrame(frame, br); err != nil {
			return nil, err
		}
	}
	return frame, nil
}

// script tells a request that runs a script from all others. sha is empty for EVAL.
func script(frame []byte) (sha string, ok bool) {
	// *4 $7 EVALSHA $40 0123...
	parts := bytes.SplitN(frame, []byte("\r\n"), 6)
	if len(parts) < 5 || frame[0] != '*' {
		return "", false
	}
	switch strings.ToUpper(string(parts[2])) {
	case "EVAL":
		return "", true
	case "EVALSHA":
		return string(parts[4]), true
	}
	return "", false
}

func noScript(reply []byte) bool { return bytes.HasPrefix(reply, []byte("-NOSCRIPT")) }
