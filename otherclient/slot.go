package otherclient

import "strings"

// slotOf is the slot of a key on a Cluster: CRC16 (XMODEM) of its tag, or of all of it, modulo 16,384.
func slotOf(key string) int {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if size := strings.IndexByte(key[open+1:], '}'); size > 0 {
			key = key[open+1 : open+1+size]
		}
	}
	var crc uint16
	for i := range len(key) {
		crc = crc<<8 ^ crcs[byte(crc>>8)^key[i]]
	}
	return int(crc % slots)
}

// crcs has the CRC16 of each byte.
var crcs = func() (all [256]uint16) {
	for i := range all {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		all[i] = crc
	}
	return all
}()
