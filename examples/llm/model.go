package main

import "iter"

// model is a pretence: it says as many words as it is told.
type model struct{}

// prompt is a request to the model.
type prompt struct {
	estimate int // tokens that it may cost, as far as is known before
	length   int // tokens that it will cost, which nobody knows before
}

// answer streams the tokens of an answer.
func (model) answer(p prompt) iter.Seq[string] {
	return func(yield func(string) bool) {
		for range p.length {
			if !yield("word ") {
				return
			}
		}
	}
}
