"""SIFT descriptors of one photograph: [n x 128] uint8, strongest first, as .npy.

    /usr/bin/python3 photographs.py PICTURE OUT.npy --limit 25000

Run by bench/support/sift.py under Debian's Python, because Debian's python3-opencv belongs to
it. Each picture has a process of its own, so that their memory does not add up.
"""

import argparse

import cv2
import numpy

# Larger pictures are scaled down to this: the scale space of SIFT takes some 150 bytes a pixel.
MAX_PIXELS = 8_000_000
CONTRAST_THRESHOLD = 0.02


def descriptors(path: str, limit: int) -> numpy.ndarray:
    cv2.setNumThreads(1)  # the order of equal key points must not depend on the machine
    picture = cv2.imread(path, cv2.IMREAD_GRAYSCALE)
    if picture is None:
        raise SystemExit(f"photographs.py: {path} is not a picture that OpenCV reads")
    height, width = picture.shape
    if height * width > MAX_PIXELS:
        scale = (MAX_PIXELS / (height * width)) ** 0.5
        size = (round(width * scale), round(height * scale))
        picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
    sift = cv2.SIFT_create(contrastThreshold=CONTRAST_THRESHOLD)
    points = list(sift.detect(picture, None))
    points.sort(key=lambda p: (-p.response, p.pt[0], p.pt[1], p.size, p.angle))
    points = points[:limit]
    if not points:
        return numpy.zeros((0, 128), numpy.uint8)
    kept, values = sift.compute(picture, points)
    if len(kept) != len(points):
        raise SystemExit(f"photographs.py: {path}: OpenCV dropped key points")
    return values.astype(numpy.uint8)  # whole numbers from 0 to 255, stored as float by OpenCV


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture")
    parser.add_argument("out")
    parser.add_argument("--limit", type=int, required=True)
    options = parser.parse_args()
    with open(options.out, "wb") as out:
        numpy.save(out, descriptors(options.picture, options.limit))
