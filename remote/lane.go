package remote

import (
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Lane names the server that holds a key, or a group of slots that a cluster keeps together as a rule: calls for keys of
// one lane fail together, and those of others go on.
//
// Who is the master of a slot would have to be asked of the cluster, which may be what does not answer; so the slots are
// cut into equal ranges, as they are dealt out when a cluster is made.
func (s *Source) Lane(key string) string {
	switch c := s.conn.rdb.(type) {
	case *redis.ClusterClient:
		return slotRanges[slot(s.key(key))*len(slotRanges)/slots]
	case *redis.Ring:
		if shard, err := c.GetShardClientForKey(s.key(key)); err == nil {
			return shard.Options().Addr
		}
	}
	return ""
}

const slots = 16384

var slotRanges = func() (names [16]string) {
	for i := range names {
		names[i] = fmt.Sprintf("slots %d-%d", i*slots/len(names), (i+1)*slots/len(names)-1)
	}
	return names
}()

// slot is the slot of a key in a cluster: CRC16 (XMODEM) of its hash tag. Source: the Redis Cluster specification.
func slot(key string) int {
	if i := strings.IndexByte(key, '{'); i >= 0 {
		if n := strings.IndexByte(key[i+1:], '}'); n > 0 {
			key = key[i+1 : i+1+n]
		}
	}
	var crc uint16
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
	}
	return int(crc) % slots
}
